package coordinator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/jobspec"
)

// readHistory reads the history of a cluster, which is to have some jobs at least.
func readHistory(t *testing.T, b *testCluster, jobs int) (out []history.Job) {
	t.Helper()
	b.waitUntil(fmt.Sprintf("%d jobs are in the history", jobs), func() bool {
		out = nil
		files, err := history.Files(filepath.Join(b.cfg.Dir, "history"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range files {
			f, err := os.Open(p)
			if err != nil {
				t.Fatal(err)
			}
			for s := bufio.NewScanner(f); s.Scan(); {
				var j history.Job
				if err := json.Unmarshal(s.Bytes(), &j); err != nil {
					t.Fatal(err)
				}
				out = append(out, j)
			}
			_ = f.Close()
		}
		return len(out) >= jobs
	})
	return out
}

func TestEndedJobIsInHistoryOnceAndForgotten(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 2, -1 })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	names := []string{"a", "b", "c", "d", "e"}
	for i, name := range names {
		b.submit(groupJob(name, 2))
		b.waitForEnd(name, succeeded)
		if i == 2 {
			b.kill()
			b.start()
		}
	}
	live := func(name string) bool { // what the facts have can be stopped, also when it ended
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: name}))
		return err == nil
	}
	b.waitUntil("only two are left", func() bool { return !live("c") && live("d") && live("e") })
	seen := map[string]int{}
	for _, j := range readHistory(t, b, 3) {
		seen[j.Name]++
		if j.State != "succeeded" || len(j.Stages[0].Tasks) != 2 || j.Stages[0].Tasks[0].Attempts[0].Node != "n1" || j.FinishMS < j.SubmitMS {
			t.Errorf("%+v", j)
		}
	}
	for _, n := range names[:3] {
		if seen[n] != 1 {
			t.Errorf("job %s is %d times in the history", n, seen[n])
		}
	}
}

func TestHistoryRecordsStartingTime(t *testing.T) {
	f := facts.New()
	for what, c := range map[string]struct {
		began, ran, want int64 // ms; the attempt is placed at 10 s and ends at 20 s
	}{
		"it ran after 3 s":                     {13_000, 6_000, 3_000},
		"it never ran":                         {0, 0, 0},
		"the node's clock is behind":           {9_000, 6_000, 0},
		"the node's clock is ahead":            {19_000, 6_000, 4_000},
		"running time longer than the attempt": {12_000, 30_000, 0},
	} {
		a, seen := &facts.Attempt{Placed: 10e9, Ended: 20e9}, &droverv1.SeenAttempt{StartedMs: c.began, RunningMs: c.ran}
		if h := historyAttempt(f, a, seen); h.StartingMS != c.want || h.RunMS != c.ran || h.PlaceMS != 10_000 {
			t.Errorf("%s: %+v, want %d ms to start", what, h, c.want)
		}
	}
}

// The history says of a guarantee what the status of an ended job does: a departure that was planned last, and that the
// scheduler might have delayed within its guarantee, is none.
func TestHistoryRecordsWhatWasGuaranteed(t *testing.T) {
	deadline := time.UnixMilli(60_000)
	for what, c := range map[string]struct {
		deadline  *time.Time
		departure int64 // at the end, ms
		want      int64
	}{
		"a guaranteed deadline":                     {&deadline, 60_000, 60_000},
		"a departure that was planned last":         {nil, 50_000, 0},
		"such a departure of a job with a deadline": {&deadline, 50_000, 0},
		"no guarantee":                              {&deadline, 0, 0},
	} {
		j := &facts.Job{State: droverv1.JobState_JOB_STATE_SUCCEEDED, DepartureAtEnd: c.departure * 1e6, Spec: &jobspec.Job{Deadline: c.deadline}}
		if got := (&endedJobs{}).historyRecord(facts.New(), j).GuaranteedMS; got != c.want {
			t.Errorf("%s: guaranteed by %d ms, want %d", what, got, c.want)
		}
	}
}
