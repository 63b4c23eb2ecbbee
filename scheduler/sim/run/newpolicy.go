package run

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/run/pipe"
)

// pipePrefix marks a scheduler that is another process: "pipe:python3 sjf.py".
const pipePrefix = "pipe:"

// CheckScheduler returns an error for a scheduler that does not exist or has no such parameters.
func CheckScheduler(name string, params map[string]string) error {
	if strings.HasPrefix(name, pipePrefix) {
		if len(params) > 0 {
			return fmt.Errorf("%s takes no parameters: put them into its command", name)
		}
		return nil // Start reports a missing command
	}
	_, err := policies.New(name, params)
	return err
}

// newPolicy makes the policy of one simulation, and the function to call after it.
func (s *Setup) newPolicy() (scheduler.Policy, func() error, error) {
	command, isPipe := strings.CutPrefix(s.Scheduler, pipePrefix)
	if !isPipe {
		p, err := policies.New(s.Scheduler, s.Params)
		return p, func() error { return nil }, err
	}
	p, err := pipe.Start(strings.Fields(command), os.Stderr)
	if err != nil {
		return nil, nil, err
	}
	return p, p.Close, nil
}

// stopFunc returns a function for engine.Config.Stop: it ends the simulation with ctx, or when a
// policy in another process fails.
func stopFunc(ctx context.Context, p scheduler.Policy) func() error {
	stop := StopFunc(ctx)
	failing, ok := p.(interface{ Err() error })
	if !ok {
		return stop
	}
	return func() error {
		if err := failing.Err(); err != nil {
			return err
		}
		return stop()
	}
}
