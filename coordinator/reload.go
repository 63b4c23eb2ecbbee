package coordinator

import (
	"context"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler/policies"
)

// SchedulerChoice is a policy and its parameters.
type SchedulerChoice struct {
	Name   string
	Params map[string]string
}

// defaultScheduler returns the policy that is in force until an operator sets one.
func (c *core) defaultScheduler() (string, map[string]string) {
	d := c.schedulerDefault.Load()
	return d.Name, d.Params
}

// followReloads takes over a default scheduler that was changed while the coordinator runs. An
// invalid choice changes nothing.
func (c *core) followReloads(ctx context.Context) error {
	for {
		select {
		case next := <-c.cfg.SchedulerChanges:
			if _, err := policies.New(next.Name, next.Params); err != nil {
				c.log.Error("the scheduler stays as it is", "err", err)
				continue
			}
			c.schedulerDefault.Store(&next)
			c.view(func(f *facts.Facts) {
				if name, _ := f.Scheduler(); name != "" {
					c.log.Warn("the scheduler that an operator set goes before the configured one", "set", name, "configured", next.Name)
				}
			})
			select {
			case c.schedulerReloaded <- struct{}{}:
			default:
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// applyReload creates the policy again if the default scheduler in force has changed. The
// reservations of the previous one are deleted, as when an operator sets a scheduler.
func (l *leader) applyReload(ctx context.Context) error {
	before := l.policyName
	l.c.view(func(f *facts.Facts) {
		if err := l.setPolicy(f); err != nil {
			l.c.log.Error("the scheduler stays as it is", "err", err)
		}
	})
	if l.policyName == before {
		return nil
	}
	if err := takeOverFromAnother(ctx, l.proposer, l.policyName); err != nil {
		return err
	}
	return l.resync(ctx, nil, nil)
}
