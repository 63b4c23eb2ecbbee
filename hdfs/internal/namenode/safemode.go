package namenode

import (
	"context"

	"github.com/drover-run/drover/hdfs/internal/wire"
)

// safeModeGet is SAFEMODE_GET of SafeModeActionProto: a query, which changes nothing and needs no
// privilege.
const safeModeGet = 3

// InSafeMode reports whether the NameNode is in safe mode.
func InSafeMode(ctx context.Context, c Caller) (bool, error) {
	b, err := c.Call(ctx, "setSafeMode", wire.Message(nil).Uint(1, safeModeGet).Bool(2, false))
	if err != nil {
		return false, err
	}
	return decodeBool("setSafeMode response", b)
}
