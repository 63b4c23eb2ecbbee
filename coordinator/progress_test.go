package coordinator

import (
	"testing"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// TestApplyProgress checks that reported progress reaches State once, and never
// that of another run.
func TestApplyProgress(t *testing.T) {
	for name, c := range map[string]struct {
		reports []attemptProgress
		phase   scheduler.AttemptPhase
		part    float64
		changes int // reports that changed the State
	}{
		"nothing":                        {phase: scheduler.AttemptStarting},
		"it is prepared":                 {reports: []attemptProgress{{run: 1}}, phase: scheduler.AttemptStarting},
		"it runs":                        {reports: []attemptProgress{{run: 1, started: true}}, phase: scheduler.AttemptRunning, changes: 1},
		"it runs and is half done":       {reports: []attemptProgress{{run: 1, started: true, progress: 0.5}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 1},
		"the same twice":                 {reports: []attemptProgress{{run: 1, started: true, progress: 0.5}, {run: 1, started: true, progress: 0.5}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 1},
		"hardly more":                    {reports: []attemptProgress{{run: 1, started: true, progress: 0.5}, {run: 1, started: true, progress: 0.505}}, phase: scheduler.AttemptRunning, part: 0.5, changes: 1},
		"the last step":                  {reports: []attemptProgress{{run: 1, started: true, progress: 0.995}, {run: 1, started: true, progress: 1}}, phase: scheduler.AttemptRunning, part: 1, changes: 2},
		"an earlier run":                 {reports: []attemptProgress{{run: 0, started: true, progress: 0.5}}, phase: scheduler.AttemptStarting},
		"another attempt, not there yet": {reports: []attemptProgress{{key: facts.Key{Attempt: 2}, run: 1, started: true}}, phase: scheduler.AttemptStarting},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
			id := w.Submit("a", 1, schedtest.R(1, 1, 1))
			a := w.Place(scheduler.TaskID{Job: id}, 0)
			p := newProjection(noHosts)
			p.state = w.State
			changes, stamp := 0, w.State.Stamp()
			for _, h := range c.reports {
				h.key.Job = uint64(id)
				if h.key.Attempt == 0 {
					h.key.Attempt = 1
				}
				if err := p.applyProgress([]attemptProgress{h}, w.Now); err != nil {
					t.Fatal(err)
				}
				if now := w.State.Stamp(); now != stamp {
					changes, stamp = changes+1, now
				}
			}
			if a.Phase != c.phase || a.Progress != c.part || changes != c.changes {
				t.Errorf("%v, %v done, %d changes; want %v, %v, %d", a.Phase, a.Progress, changes, c.phase, c.part, c.changes)
			}
		})
	}
}
