package scheduler

import (
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

// TestWaitingRoundsReachEachStage explains the stages of random queues in parts, while jobs end and others
// are submitted in between: no part has much more than its number or a stage twice, each has the newest
// job, and a stage that waits for a whole round is explained in it unless jobs before it left the queue.
func TestWaitingRoundsReachEachStage(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.New(t), 1))
	s := New()
	if err := s.Events().PutTenant(TenantSpec{ID: 0, Name: "a", Parent: NoTenant, Weight: 1}); err != nil {
		t.Fatal(err)
	}
	const most, stages = 10, 3
	next, live := JobID(1), []JobID{}
	submit := func() {
		of := make([]StageSpec, 1+rng.IntN(stages))
		for i := range of {
			of[i] = StageSpec{Name: string(rune('a' + i)), Kind: KindGroup, Tasks: 1, Demand: Resources{1, 1, 1}}
		}
		if err := s.Events().SubmitJob(JobSpec{ID: next, Tenant: 0, Priority: PriorityLow, Submitted: Time(next)}, of); err != nil {
			t.Fatal(err)
		}
		live, next = append(live, next), next+1
	}
	r := WaitingRound{}
	for range 100 {
		for range rng.IntN(40) {
			submit()
		}
		changes := rng.IntN(2) == 0
		round, ended := map[StageID]bool{}, false
		for first := true; first || r.More; first = false {
			part := map[StageID]bool{}
			r.Next(s.Queue(), s.Stamp(), most, func(g *Stage) {
				if part[g.ID()] || !g.Ready() {
					t.Fatalf("%v twice in a part, or not ready", g.ID())
				}
				part[g.ID()], round[g.ID()] = true, true
			})
			if !ended && r.Continues == first {
				t.Fatalf("continues %v in part %d of a round", r.Continues, len(round))
			}
			if len(part) > most+2*stages {
				t.Fatalf("%d stages in a part", len(part))
			}
			if n := len(live); n > 0 && !part[StageID{Job: live[n-1]}] {
				t.Fatalf("newest job %d is not explained", live[n-1])
			}
			if changes && r.More && rng.IntN(3) == 0 {
				i := rng.IntN(len(live))
				if err := s.Events().EndJob(live[i]); err != nil {
					t.Fatal(err)
				}
				live, ended = append(live[:i], live[i+1:]...), true
				submit()
			}
		}
		if r.Unfinished && !ended || !r.Unfinished && ended && r.Continues {
			t.Fatalf("unfinished %v after changes %v", r.Unfinished, ended)
		}
		for _, id := range live {
			for _, g := range s.Job(id).Stages {
				if !ended && !round[g.ID()] {
					t.Fatalf("%v was not explained", g.ID())
				}
			}
		}
		for range rng.IntN(len(live) + 1) {
			i := rng.IntN(len(live))
			if err := s.Events().EndJob(live[i]); err != nil {
				t.Fatal(err)
			}
			live = append(live[:i], live[i+1:]...)
		}
	}
}
