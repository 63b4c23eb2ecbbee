package reuse

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/onmachine"
)

// TestOnMachine runs the tests of this package on the test bed.
func TestOnMachine(t *testing.T) {
	onmachine.Run(t, "^Test(Conformance|SecondTask|NextTask|TasksDoNot|DaemonDies)", 30*time.Minute, bedEnv+"=1")
}
