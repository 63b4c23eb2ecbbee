package reproduce

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
)

// newPolicy makes a contender's policy; a scheduler that this build does not
// have is errAbsent.
func newPolicy(c contender) (scheduler.Policy, error) {
	if c.rigid {
		return newRigid(c.policy)
	}
	if _, err := policies.Get(c.policy); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errAbsent)
	}
	return policies.New(c.policy, c.params)
}
