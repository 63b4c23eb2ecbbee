package policies

import (
	"cmp"

	"github.com/drover-run/drover/scheduler"
)

var fifoInfo = Info{
	Name: "fifo",
	Help: "jobs in order of submission; tasks that do not fit are passed over unless strict",
	Params: []Param{
		{Name: "strict", Kind: Bool, Default: "false", Help: "no job overtakes the first one that does not fit"},
		reserveParam,
	},
	new: func(v paramValues) scheduler.Policy { return &fifo{strict: v.bool("strict"), placer: newPlacer(v)} },
}

// fifo places ready tasks in order of (submission, job, stage, task), each on the fullest of the first nodes that fit.
type fifo struct {
	strict bool
	placer
}

func (f *fifo) Name() string { return "fifo" }

// Decide costs O(1) if nothing changed, else O(ready stages + placements).
func (f *fifo) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for p.nextPass() {
		for j, at := s.Queue().Next(0); j != nil && !f.isFull(); j, at = s.Queue().Next(at) {
			for _, g := range j.Stages {
				if g.Ready() && !f.isBlocked() {
					p.placeAll(g)
				}
			}
		}
	}
	if !f.isBlocked() {
		p.placeBeyond()
	}
	return p.finish(f.reason)
}

// isFull reports whether nothing more can be placed in this pass.
func (f *fifo) isFull() bool {
	if f.strict { // the first misfit is the head, even if none fits
		return f.isBlocked() || f.placer.actionsLeft <= 0
	}
	return f.placer.isDone()
}

// isBlocked reports whether all further stages wait behind a misfit.
func (f *fifo) isBlocked() bool { return f.strict && f.placer.firstMisfit != nil }

func (f *fifo) reason(g *scheduler.Stage) scheduler.Waiting {
	if head := f.placer.firstMisfit; f.isBlocked() && cmp.Or(cmp.Compare(head.Job.Spec.Submitted, g.Job.Spec.Submitted), head.ID().Compare(g.ID())) < 0 {
		return scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonHeadOfLine, Tasks: g.Pending, Behind: head.ID()}
	}
	return f.placer.reason(g)
}
