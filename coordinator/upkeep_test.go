package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// However much changes, all jobs and files are looked at for what may be forgotten once in tidyPause. It was with each burst
// of changes, and took a processor where there are very many.
func TestChangesDoNotHaveAllJobsAndFilesLookedAtEachTime(t *testing.T) {
	var looks atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Now = func() time.Time {
			if calledBy("(*core).forgetJobs") {
				looks.Add(1)
			}
			return time.Now()
		}
	})
	began, changes := time.Now(), 0
	for ; time.Since(began) < tidyPause+tidyPause/2; changes++ {
		req := &droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "t", Weight: float64(changes + 1)}}}
		if _, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(req)); err != nil {
			t.Fatal(err)
		}
	}
	most := 2 + int64(time.Since(began)/tidyPause)
	if n := looks.Load(); n < 1 || n > most {
		t.Errorf("%d looks at all jobs while there were %d changes in %s, want 1 to %d", n, changes, time.Since(began), most)
	}
	b.waitUntil("a look after the last change", func() bool { return looks.Load() > 1 })
}

// calledBy reports whether a method is on the stack, as "(*core).view".
func calledBy(method string) bool {
	pc := make([]uintptr, 16)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, method) {
			return true
		}
		if !more {
			return false
		}
	}
}

// Jobs that end while the history in JSON cannot be written, more than may wait for it, are written once it can, and then
// forgotten, though the same leader leads on. Those that did not fit stayed in memory, and in every snapshot, for its term.
func TestJobsThatEndWhileTheHistoryFailsAreForgotten(t *testing.T) {
	t.Parallel()
	const jobs = 20
	b := newTestCluster(t, func(c *Config) {
		c.retainJobs, c.KeepLogs, c.unwrittenJobs, c.HistoryBytes = 1, -1, 3, 100 // so few bytes have a new file begun for each write
	})
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	b.submit(groupJob("written", 1))
	b.waitForEnd("written", succeeded)
	readHistory(t, b, 1)
	obstacle := filepath.Join(b.cfg.Dir, "history", "history-000002.jsonl", "f") // a folder is where the next file shall be
	if err := os.MkdirAll(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	live := func() (n int) { // what the facts have can be stopped, also when it ended
		for i := range jobs {
			if _, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: fmt.Sprint("j", i)})); err == nil {
				n++
			}
		}
		return n
	}
	for i := range jobs {
		b.submit(groupJob(fmt.Sprint("j", i), 1))
	}
	for i := range jobs {
		b.waitForEnd(fmt.Sprint("j", i), succeeded)
	}
	if n := live(); n != jobs {
		t.Fatalf("%d jobs are forgotten that are in no history", jobs-n)
	}
	if err := os.RemoveAll(filepath.Dir(obstacle)); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("all but the last are forgotten", func() bool { return live() <= 1 })
}
