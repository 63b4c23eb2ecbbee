package containerd

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/onmachine"
)

// TestOnMachine runs the tests of this package on the test bed. The measurement of
// enforcement needs an idle machine and has its own entry.
func TestOnMachine(t *testing.T) {
	onmachine.Run(t, "^Test(Conformance|Image|Confinement|Command|Fork|OutOf|Run|Checkpoint|FailedDump|NeighbourWrites|What)", 30*time.Minute, "DROVER_TEST_CONTAINERD=1")
}

func TestEnforcementOnMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that the kernel grants containers what their limits say; it measures for two minutes, run it without -short")
	}
	onmachine.Run(t, "^Test(Enforcement|NeighbourOfADiskHog)$", 6*time.Minute, "DROVER_TEST_CONTAINERD=1", "DROVER_TEST_ENFORCEMENT=1")
}
