package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/jobspec"
)

// A job with a deadline and no runtime_bound gets a guarantee once it is known by how much
// predictions are off, and a submission that requires a quote says what it went by. Before, and
// under a scheduler without guarantees, the quote says why there is none.
func TestQuotedDeadlineIsGuaranteed(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.Scheduler = "3dsf" })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	submit := func(name string, require float64) *droverv1.SubmitJobResponse {
		t.Helper()
		j := withDeadline(groupJob(name, 4), time.Hour, "")
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), RequireQuote: require}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	got := submit("job", 0.1)
	if q := got.Quote; q.GuaranteedMs != 0 || !strings.Contains(q.NoGuarantee, "too few tasks have ended") || got.AcceptedBy != "quote" {
		t.Errorf("without history: %v, accepted by %q", q, got.AcceptedBy)
	}
	b.waitForEnd("job", succeeded)
	for i := range 40 { // each completes a stage, whose error is recorded
		b.submit(groupJob("job", 4))
		b.waitForEnd("job", succeeded)
		if i < 17 {
			continue
		}
		n.SetBehaviour(coordtest.Hang)
		if got = submit("job", 0.1); got.Quote.GuaranteedMs > 0 {
			break
		}
		n.SetBehaviour(coordtest.Succeed)
		b.waitForEnd("job", succeeded)
	}
	if q := got.Quote; q.GuaranteedMs != q.DeadlineMs || q.NoGuarantee != "" || got.AcceptedBy != "guarantee" {
		t.Fatalf("with history: %v, accepted by %q", q, got.AcceptedBy)
	}
	id := fmt.Sprint(got.Job)
	b.waitUntil("the scheduler guarantees it", func() bool { return count(b.eventKinds(id), "job.deadline_guaranteed") == 1 })
	b.kill() // the bounds survive
	b.start()
	b.waitUntil("it is still guaranteed", func() bool { j := b.job(id); return j != nil && j.Job.GuaranteedMs > 0 })
	if got := submit("none", 0); got.AcceptedBy != "" {
		t.Errorf("nothing was required, and it was accepted by %q", got.AcceptedBy)
	}
	if _, err := b.client.SetScheduler(b.ctx, connect.NewRequest(&droverv1.SetSchedulerRequest{Name: "edf"})); err != nil {
		t.Fatal(err)
	}
	if got := submit("edf", 0.1); got.Quote.GuaranteedMs != 0 || !strings.Contains(got.Quote.NoGuarantee, "scheduler edf guarantees no deadlines") || got.AcceptedBy != "quote" {
		t.Errorf("under edf: %v, accepted by %q", got.Quote, got.AcceptedBy)
	}
	n.SetBehaviour(coordtest.Succeed)
	for _, name := range []string{id, "none", "edf"} {
		b.waitForEnd(name, succeeded)
	}
}
