package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/preempt"
)

// On full machines, jobs with deadlines arrive: the scheduler suspends maps for them and resumes
// them. The deadlines are met, no work is lost, and the maps' result is correct.
func TestDeadlineJobsPreempt(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	p := &preempt.Scenario{Testbed: s.testbed, Cluster: s.cluster, Dir: s.dir, Tenant: "e2e", Maps: 9, MapSeconds: 30,
		Jobs: 2, ArrivalInterval: 2 * time.Second, Deadline: time.Minute, Logf: t.Logf}
	if err := p.Load(s.ctx); err != nil {
		t.Fatal(err)
	}
	got, err := p.Run(s.ctx, preempt.Suspend, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	t.Logf("events:\n%s", s.levelEvents("maps-suspend-0"))
	if got.OnTime != p.Jobs || got.Suspends == 0 || got.Kills != 0 || got.LostCPU != 0 || got.FailedAttempts != 0 {
		t.Errorf("want %d jobs on time, some maps suspended, and nothing lost: %+v", p.Jobs, got)
	}
	if !got.ResultCorrect {
		t.Error("the maps' result differs from that of maps without deadline jobs")
	}
	if !strings.Contains(s.mustRun("events", "-job", "maps-suspend-0").Stdout, "for job deadline-suspend-0-0") {
		t.Error("no event names the job for which a map was suspended")
	}
	s.mustRun("scheduler", "set", "3dsf")
	s.awaitClean(2 * time.Minute)
}
