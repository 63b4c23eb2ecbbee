package lasmq

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Jobs unknown to an index are read in parts, one part at a time, in order of submission. Then the
// queues equal those of an index that read all of them at once.
func TestUnknownJobsAreReadInParts(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 2, 10)).AddTenants("a")
	var jobs []*scheduler.Job
	for i := range int32(30) {
		jobs = append(jobs, w.State.Job(w.Submit("a", 1+i%7, schedtest.R(1, 1, 1))))
	}
	x := NewIndex(testConfig(nil), false, oneGroup, noAccount)
	x.readPart = 4 * (readJob + 1)
	for read := 4; ; read += 4 {
		for range 2 { // the second time nothing more is read
			x.Sync(w.State, w.Now, 1)
			for i, j := range jobs {
				if x.IsUnread(j) != (i >= read) {
					t.Fatalf("job %d of 30 is unread: %v, of which %d should be read", i, x.IsUnread(j), read)
				}
			}
		}
		if !x.HasUnread() {
			break
		}
		w.Advance(time.Millisecond)
		if read == 8 {
			w.State.Events().EndJob(jobs[20].Spec.ID)
			jobs = append(jobs[:20], jobs[21:]...)
		}
	}
	whole := NewIndex(testConfig(nil), false, oneGroup, noAccount)
	whole.Sync(w.State, w.Now, 1)
	x.Queues(0).Begin(w.Now)
	whole.Queues(0).Begin(w.Now)
	for range len(jobs) {
		a, _ := x.Queues(0).Next(false)
		b, ok := whole.Queues(0).Next(false)
		if !ok || a.Job != b.Job {
			t.Fatal("the queues read in parts are others")
		}
		x.Queues(0).Drop()
		whole.Queues(0).Drop()
	}
}
