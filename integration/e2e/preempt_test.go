package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/preempt"
)

// Full machines, then jobs with deadlines: the scheduler itself has maps give
// way, and bring back what it suspended. The deadlines are kept, no work is
// lost, and the maps' result is that of a run that nothing disturbed.
func TestDeadlineJobsTakeRoomBack(t *testing.T) {
	s := begin(t, 8*time.Minute)
	p := &preempt.Scene{Bed: s.bed, Cluster: s.cl, Dir: s.dir, Tenant: "e2e", Maps: 9, Seconds: 30,
		Jobs: 2, Gap: 2 * time.Second, Deadline: time.Minute, Say: t.Logf}
	if err := p.Load(s.ctx); err != nil {
		t.Fatal(err)
	}
	got, err := p.Play(s.ctx, preempt.Suspend, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	t.Logf("events:\n%s", s.levelEvents("maps-suspend-0"))
	if got.OnTime != p.Jobs || got.Suspends == 0 || got.Kills != 0 || got.LostCPU != 0 || got.Failed != 0 {
		t.Errorf("want %d jobs on time, some maps suspended, and nothing lost: %+v", p.Jobs, got)
	}
	if !got.Right {
		t.Error("the maps' result is not that of maps that nothing disturbed")
	}
	if !strings.Contains(s.ok("events", "-job", "maps-suspend-0").Stdout, "for job deadline-suspend-0-0") {
		t.Error("no event says for whom a map was suspended")
	}
	s.ok("scheduler", "set", "3dsf")
	s.clean(2 * time.Minute)
}
