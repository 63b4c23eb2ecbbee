package cgroups

import (
	"testing"
	"time"

	"github.com/drover-run/drover/internal/onmachine"
)

func TestOnMachine(t *testing.T) {
	onmachine.Run(t, "^TestMachine", 3*time.Minute, "DROVER_TEST_CGROUPS=1")
}
