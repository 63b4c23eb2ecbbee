package threedsf

import (
	"fmt"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// WalkAtOnce sets how much is looked at in one cycle when holes are given
// forward.
func (p *Policy) WalkAtOnce(n int) { p.walk = n }

// PlanText writes out the plan that a decision would begin with.
func (p *Policy) PlanText(s *scheduler.State, now scheduler.Time) string {
	p.known = false
	p.begin(s, now, 1000)
	defer s.Rollback(p.mark)
	p.survey()
	b := p.planFor()
	var out strings.Builder
	for _, prof := range []*backfill.Profile{b.prof, b.accounts} {
		for bin := range prof.Bins() {
			fmt.Fprintf(&out, "bin %d", bin)
			prof.Each(bin, now, func(at scheduler.Time, free []int64) bool {
				fmt.Fprintf(&out, " %d:%v", at, free)
				return true
			})
			fmt.Fprintln(&out)
		}
	}
	b.planner.Each(func(x backfill.Planned) bool {
		fmt.Fprintf(&out, "%+v\n", x)
		return true
	})
	for _, o := range b.owners {
		fmt.Fprintln(&out, o.id, o.asked, o.quote)
	}
	fmt.Fprintln(&out, b.late, b.missing)
	return out.String()
}

// Kept tells whether a plan is kept.
func (p *Policy) Kept() bool { return p.plan != nil && !p.plan.spoilt }
