package quota

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/onmachine"
)

// The bed's machines have their swap on /dev/vdc; the test gives it back.
func TestOnMachine(t *testing.T) {
	onmachine.Run(t, "^TestKernelQuota$", time.Minute, "DROVER_TEST_QUOTA_DISK=/dev/vdc")
}
