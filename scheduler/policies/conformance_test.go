package policies

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
)

// Every policy of the table conforms with its default parameters.
func TestEveryPolicyConforms(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy {
				p, err := New(info.Name, nil)
				if err != nil {
					t.Fatal(err)
				}
				if p.Name() != info.Name {
					t.Fatalf("%q calls itself %q", info.Name, p.Name())
				}
				return p
			})
		})
	}
}

func TestStrictFifoConforms(t *testing.T) {
	policytest.Run(t, func() scheduler.Policy { return &fifo{strict: true} })
}
