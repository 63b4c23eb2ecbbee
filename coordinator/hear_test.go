package coordinator

import (
	"testing"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// What nodes say of attempts reaches the State, once, and never a wrong run.
func TestHearingOfAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		say     []heard
		phase   scheduler.AttemptPhase
		part    float64
		changes uint64
	}{
		"nothing":                        {phase: scheduler.AttemptStarting},
		"it is prepared":                 {say: []heard{{run: 1}}, phase: scheduler.AttemptStarting},
		"it runs":                        {say: []heard{{run: 1, started: true}}, phase: scheduler.AttemptRunning, changes: 1},
		"it runs and is half done":       {say: []heard{{run: 1, started: true, part: 0.5}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 2},
		"the same twice":                 {say: []heard{{run: 1, started: true, part: 0.5}, {run: 1, started: true, part: 0.5}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 2},
		"hardly more":                    {say: []heard{{run: 1, started: true, part: 0.5}, {run: 1, started: true, part: 0.505}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 2},
		"the last step":                  {say: []heard{{run: 1, started: true, part: 0.995}, {run: 1, started: true, part: 1}}, phase: scheduler.AttemptRunning, part: 1, changes: 3},
		"an earlier run":                 {say: []heard{{run: 0, started: true, part: 0.5}}, phase: scheduler.AttemptStarting},
		"another attempt, not there yet": {say: []heard{{key: facts.Key{Attempt: 2}, run: 1, started: true}}, phase: scheduler.AttemptStarting},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
			id := w.Submit("a", 1, schedtest.R(1, 1, 1))
			a := w.Place(scheduler.TaskID{Job: id}, 0)
			p := newProjection(noHosts)
			p.state = w.State
			before := w.State.Changes()
			for _, h := range c.say {
				h.key.Job = uint64(id)
				if h.key.Attempt == 0 {
					h.key.Attempt = 1
				}
				if err := p.hear([]heard{h}, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			if a.Phase != c.phase || a.Progress != c.part || w.State.Changes()-before != c.changes {
				t.Errorf("%v, %v done, %d changes; want %v, %v, %d", a.Phase, a.Progress, w.State.Changes()-before, c.phase, c.part, c.changes)
			}
		})
	}
}
