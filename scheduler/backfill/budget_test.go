package backfill

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// A strict plan made in parts, each with a budget, equals the plan made at once. No part takes more
// steps than its budget and those of one task.
func TestAPlanInPartsIsThePlanMadeAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bins := rapid.IntRange(1, 4).Draw(t, "bins")
		var projects []Project
		for id := range rapid.IntRange(1, 4).Draw(t, "projects") {
			pr := drawProject(t, id+1, 0, 2)
			for i := range pr.Requests {
				pr.Requests[i].Tasks = []int32{0, 1, 2, 3, 4}
			}
			projects = append(projects, pr)
		}
		newPlanner := func() *Planner {
			prof := &Profile{}
			for range bins {
				prof.AddBin([]int64{8, 8})
			}
			p := NewPlanner(Config{Variant: Strict}, nil)
			p.Reset(prof, nil, nil)
			for _, pr := range projects {
				p.Restore(pr, Guarantee{}, false, func(Key, *Need) Existing { return Existing{} })
			}
			return p
		}
		whole, parts := newPlanner(), newPlanner()
		budget := rapid.IntRange(1, 500).Draw(t, "budget")
		for _, pr := range projects {
			want, wantErr := whole.CompletePlan(0, pr.ID)
			for {
				parts.SetBudget(budget)
				before := parts.NumUnplaced()
				got, err := parts.CompletePlan(0, pr.ID)
				if left := parts.StepsLeft(); left < -(placeSteps + parts.classes.costOfSearch(parts, &item{group: parts.registry.projects[pr.ID].groups[0]})) {
					t.Fatalf("a part left %d steps of %d", left, budget)
				}
				if errors.Is(err, ErrUnfinished) {
					if got != (Guarantee{}) || parts.NumUnplaced() >= before {
						t.Fatalf("a part guarantees %+v and leaves %d tasks of %d", got, parts.NumUnplaced(), before)
					}
					continue
				}
				if got != want || (err == nil) != (wantErr == nil) {
					t.Fatalf("in parts: %+v, %v; at once: %+v, %v", got, err, want, wantErr)
				}
				break
			}
		}
		if got, want := planText(parts, nil), planText(whole, nil); got != want {
			t.Fatalf("in parts\n%s\nat once\n%s", got, want)
		}
	})
}
