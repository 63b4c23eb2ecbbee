package reproduce

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// newPolicy makes a contender's policy. It returns errUnavailable if this build does not have the
// scheduler.
func newPolicy(c contender) (scheduler.Policy, error) {
	if c.rigid {
		return newRigid(c.policy)
	}
	if _, err := policies.Get(c.policy); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errUnavailable)
	}
	return policies.New(c.policy, c.params)
}
