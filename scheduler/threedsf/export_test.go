package threedsf

import (
	"fmt"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// SetCompressBatch sets how many pieces of work one cycle of a compression visits.
func (p *Policy) SetCompressBatch(n int) { p.compressBatch = n }

// PlanText returns the plan that a decision would start with as text.
func (p *Policy) PlanText(s *scheduler.State, now scheduler.Time) string {
	p.idleAtStamp = false
	p.begin(s, now, 1000)
	defer s.Rollback(p.mark)
	p.surveyGuarantees()
	b := p.syncPlan()
	var out strings.Builder
	for _, prof := range []*backfill.Profile{b.profile, b.accounts} {
		for bin := range prof.Bins() {
			fmt.Fprintf(&out, "bin %d", bin)
			prof.Each(bin, now, func(at scheduler.Time, free []int64) bool {
				fmt.Fprintf(&out, " %d:%v", at, free)
				return true
			})
			fmt.Fprintln(&out)
		}
	}
	b.planner.Each(func(x backfill.PlannedTask) bool {
		fmt.Fprintf(&out, "%+v\n", x)
		return true
	})
	for _, o := range b.owners {
		fmt.Fprintln(&out, o.id, o.requested, o.guarantee)
	}
	fmt.Fprintln(&out, b.late, b.missing)
	return out.String()
}

// HasCachedPlan reports whether a plan is cached.
func (p *Policy) HasCachedPlan() bool { return p.cachedPlan != nil && !p.cachedPlan.invalid }
