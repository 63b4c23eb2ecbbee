package coordinator

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
)

// A job that had published its result when the coordinator was restored from an older archive is stopped when a task of it
// starts again, and told what is so: none of its attempts could write its output any more. One whose temporary folder is
// there goes on, and so does one whose output is not.
func TestAJobThatWasPublishedBeforeARestore(t *testing.T) {
	for name, c := range map[string]struct {
		restored, output, temporary bool
		checks                      int // that a node is asked for
		want                        droverv1.JobState
	}{
		"published":                          {true, true, false, 2, stopped},
		"published, and never restored":      {false, true, false, 0, succeeded},
		"not published":                      {true, false, true, 1, succeeded},
		"something is there, and the folder": {true, true, true, 2, succeeded},
		"neither is there":                   {true, false, false, 1, succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, func(c *Config) { c.Lease = time.Second })
			b.fs.Input("hdfs:///in", 1, "n1")
			_, stop := b.addNode(coordtest.Info("n1"), coordtest.Hang)
			b.waitForNodes()
			b.submit(mapReduceJob("j", 0))
			b.waitUntil("its map runs", func() bool { return b.job("j").Stages[0].Running == 1 })
			checks := b.fs.RequestCount("check")
			stop()
			b.kill()
			temporary := b.changeLog(c.restored)
			if c.output {
				b.fs.Make("hdfs:///out/j/other")
			}
			if c.temporary {
				b.fs.Make(temporary + "/other")
			}

			b.start()
			second, _ := b.addNode(coordtest.Info("n2"), coordtest.Hang)
			b.waitUntil("its map runs again, or the job is stopped", func() bool {
				j := b.job("j")
				return j.Stages[0].Running == 1 && len(second.Wanted()) == 1 || j.Job.State == stopped
			})
			b.waitUntil("its output was looked for", func() bool { return b.fs.RequestCount("check") == checks+c.checks })
			if c.want == succeeded {
				second.SetBehaviour(coordtest.Succeed)
				second.Advance()
			}
			got := b.waitForEnd("j", c.want)
			if c.want == stopped && (!strings.Contains(got.Job.Message, "restored from an archive") || !strings.Contains(got.Job.Message, "remove it and submit the job again")) {
				t.Errorf("message %q", got.Job.Message)
			}
			if c.want == stopped && strings.Contains(b.eventsSoFar(), "task.failed") {
				t.Error("an attempt was spent")
			}
		})
	}
}

// changeLog writes that the cluster was restored into the log of a coordinator that was killed, or nothing, and returns where
// its job 1 has its unfinished output.
func (b *testCluster) changeLog(restored bool) (temporary string) {
	b.t.Helper()
	r, err := replica.Open(replica.Config{Dir: filepath.Join(b.cfg.Dir, "raft"), ID: "c1", NoSync: true})
	if err != nil {
		b.t.Fatal(err)
	}
	b.waitUntil("it leads", func() bool { _, err := r.BeginTerm(context.Background()); return err == nil })
	r.Read(func(f *facts.Facts) { temporary = f.Job(1).Temporary })
	if restored {
		e := &droverv1.Entry{Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "a test"}}}
		if _, err := r.Propose(context.Background(), e); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		b.t.Fatal(err)
	}
	return temporary
}
