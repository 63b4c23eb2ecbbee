package coordinator

import (
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// TestWaitingReasonNamesTheBlocker checks that a reason names the node, tenant
// and time, and another job by its number, since its name may be private. What
// no longer exists is left out.
func TestWaitingReasonNamesTheBlocker(t *testing.T) {
	f := facts.New()
	for i, e := range []*droverv1.Entry{
		{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}},
		{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{
			Spec: `{"version":1,"name":"first","tenant":"default","priority":"low","keep_failed":0,"stages":[{"name":"s","kind":"group","command":["x"],"tasks":2,"resources":{"cpu":3000,"memory":1,"io":1},"disk":1,"attempts":4}]}`}}},
		{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{
			Spec: `{"version":1,"name":"large","tenant":"default","priority":"low","keep_failed":0,"stages":[{"name":"s","kind":"group","command":["x"],"tasks":2,"resources":{"cpu":64000,"memory":1,"io":1},"disk":1,"attempts":4}]}`}}},
		{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{
			{Kind: int32(facts.ActReserve), Reservation: &droverv1.ReservationFact{Id: 5, Job: 1, Node: 1}},
			{Kind: int32(facts.ActReserve), Reservation: &droverv1.ReservationFact{Id: 6}}}}}},
	} {
		e.Version = facts.EntryVersion
		if r := f.Apply(uint64(i+1), e); r.Err != nil || len(r.Dropped) > 0 {
			t.Fatalf("entry %d: %+v", i+1, r)
		}
	}
	at := scheduler.Time(time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC).UnixNano())
	for _, c := range []struct {
		w    scheduler.Waiting
		want string
	}{
		{scheduler.Waiting{Reason: scheduler.ReasonData, Node: 0, Until: at}, "waiting for its data's node n1 until 2026-11-22 10:20:30 UTC"},
		{scheduler.Waiting{Reason: scheduler.ReasonData, Node: 7, Until: scheduler.Never}, "waiting for its data's node"},
		{scheduler.Waiting{Reason: scheduler.ReasonSuspending, Node: 0}, "capacity is being freed on n1"},
		{scheduler.Waiting{Reason: scheduler.ReasonSuspending, Node: scheduler.NoNode}, "capacity is being freed"},
		{scheduler.Waiting{Reason: scheduler.ReasonDue, Node: 0}, "due, but its reserved capacity is still occupied on n1"},
		{scheduler.Waiting{Reason: scheduler.ReasonHeadOfLine, Behind: scheduler.StageID{Job: 1}}, "behind the head of line: job 1"},
		{scheduler.Waiting{Reason: scheduler.ReasonShare, Behind: scheduler.StageID{Job: 99}}, "another is due first"},
		{scheduler.Waiting{Reason: scheduler.ReasonCap, Cap: scheduler.CapJob, Resource: scheduler.CPU, Tenant: scheduler.TenantID(f.Tenant("default").ID)},
			"over its cap on cpu for one job of tenant default (drover tenant list)"},
		{scheduler.Waiting{Reason: scheduler.ReasonReservation, Reservation: 5, Until: at}, "behind a reservation on n1: job 1 until 2026-11-22 10:20:30 UTC"},
		{scheduler.Waiting{Reason: scheduler.ReasonReservation, Reservation: 7}, "behind a reservation"},
		{scheduler.Waiting{Reason: scheduler.ReasonNoMemory, Nodes: 1}, "no free memory on 1 node"},
		{scheduler.Waiting{Reason: scheduler.ReasonNoCPU, Nodes: 1, Stage: scheduler.StageID{Job: 1}}, "no free cpu on 1 node"},
		{scheduler.Waiting{Reason: scheduler.ReasonNoCPU, Nodes: 1, Stage: scheduler.StageID{Job: 2}},
			"no free cpu on 1 node, too small even when empty: node n1, which lacks least, has at most cpu 4, memory 4GiB, I/O 100MiB/s and 100GiB of disk for one"},
		{scheduler.Waiting{Reason: scheduler.ReasonNoNode}, "no schedulable node in the last cycle; there is one now"},
		{scheduler.Waiting{Reason: scheduler.ReasonLater, Until: at}, "planned for later"},
	} {
		if got := (&waitList{now: time.Now}).reason(f, &c.w); got != c.want {
			t.Errorf("%v: %q, want %q", c.w.Reason, got, c.want)
		}
	}
}

// TestReasonsInPartsReplaceThoseBefore checks that reasons which several decisions give together replace
// those of the round before one by one, and all of them at the end.
func TestReasonsInPartsReplaceThoseBefore(t *testing.T) {
	l := &waitList{now: time.Now}
	stage := func(job scheduler.JobID) scheduler.StageID { return scheduler.StageID{Job: job} }
	set := func(continues, more bool, r scheduler.Reason, jobs ...scheduler.JobID) {
		d := scheduler.Decision{WaitingContinues: continues, WaitingMore: more}
		for _, j := range jobs {
			d.Waiting = append(d.Waiting, scheduler.Waiting{Stage: stage(j), Reason: r, Tasks: 1})
		}
		l.set(&d)
	}
	want := func(what string, reasons ...scheduler.Reason) {
		t.Helper()
		n := int32(0)
		for i, r := range reasons {
			w, ok := l.of(stage(scheduler.JobID(i + 1)))
			if ok != (r != 0) || w.Reason != r {
				t.Errorf("%s: job %d has %v, want %v", what, i+1, w.Reason, r)
			}
			if r != 0 {
				n++
			}
		}
		sum := int32(0)
		for _, s := range l.sums() {
			sum += int32(s.GetStages())
		}
		if sum != n {
			t.Errorf("%s: the sums have %d stages, want %d", what, sum, n)
		}
	}
	const cpu, io = scheduler.ReasonNoCPU, scheduler.ReasonNoIO
	set(false, false, cpu, 1, 2, 3)
	want("all at once", cpu, cpu, cpu)
	set(false, true, io, 1)
	want("the first part", io, cpu, cpu)
	set(true, true, io, 2)
	want("the second part", io, io, cpu)
	set(true, false, io, 4)
	want("the last part", io, io, 0, io)
	set(false, true, cpu, 1)
	want("the next round", cpu, io, 0, io)
	set(false, false, cpu, 2)
	want("all at once again", 0, cpu, 0, 0)
}
