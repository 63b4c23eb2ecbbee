package policies

import (
	"testing"

	"github.com/drover-run/drover/scheduler/policytest"
)

func TestScripts(t *testing.T) { policytest.RunScripts(t, "testdata/*.txt", New) }
