package quota

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/onmachine"
)

// The test bed's machines swap on /dev/vdc; the test restores that.
func TestOnMachine(t *testing.T) {
	onmachine.Run(t, "^TestKernelQuota$", time.Minute, "DROVER_TEST_QUOTA_DISK=/dev/vdc")
}
