package policies

import "github.com/drover-run/drover/scheduler"

var fifoInfo = Info{
	Name: "fifo",
	Help: "jobs in order of submission; tasks that do not fit are passed over unless strict",
	Params: []Param{
		{Name: "strict", Kind: Bool, Default: "false", Help: "no job overtakes the first one that does not fit"},
		reserveParam,
	},
	New: func(v Values) (scheduler.Policy, error) {
		return &fifo{strict: v.Bool("strict"), placer: placer{reserveForMisfits: v.Bool("reserve")}}, nil
	},
}

// fifo places ready tasks in order of (submission, job, stage, task), each on the
// fullest of the first nodes that fit.
type fifo struct {
	strict bool
	placer placer
}

func (f *fifo) Name() string { return "fifo" }

// SetReasonsWanted sets whether decisions list why stages wait.
func (f *fifo) SetReasonsWanted(wanted bool) { f.placer.setReasons(wanted) }

// Decide costs O(1) if nothing changed, else O(ready stages + placements).
func (f *fifo) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for !p.isFull() && p.nextPass() {
		for j, at := s.Queue().Next(0); j != nil && !p.isFull(); j, at = s.Queue().Next(at) {
			for _, g := range j.Stages {
				if !g.Ready() {
					continue
				}
				if f.strict && p.firstMisfit != nil {
					p.recordWaiting(scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonHeadOfLine, Tasks: g.Pending, Behind: p.firstMisfit.ID()})
					continue
				}
				p.placeAll(g)
			}
		}
	}
	return p.finish()
}
