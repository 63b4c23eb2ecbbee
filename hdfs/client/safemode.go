package client

import (
	"context"

	"github.com/drover-run/drover/hdfs/internal/namenode"
)

// InSafeMode reports whether the NameNode is in safe mode, in which nothing can be
// written and blocks may have no location yet.
func (c *Client) InSafeMode(ctx context.Context) (bool, error) {
	return namenode.InSafeMode(ctx, c.caller)
}
