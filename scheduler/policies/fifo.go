package policies

import "github.com/drover-run/drover/scheduler"

var fifoInfo = Info{
	Name: "fifo",
	Help: "jobs in order of submission; what does not fit is passed over unless strict",
	Params: []Param{
		{Name: "strict", Kind: Bool, Default: "false", Help: "nothing overtakes the first job that does not fit"},
		reserveParam,
	},
	New: func(v Values) (scheduler.Policy, error) {
		return &fifo{strict: v.Bool("strict"), placer: placer{reserve: v.Bool("reserve")}}, nil
	},
}

// fifo places ready tasks in order of (submission, job, stage, task), each on
// the tightest of the first nodes with room.
type fifo struct {
	strict bool
	placer placer
}

func (f *fifo) Name() string { return "fifo" }

// Reasons says whether Decision.Waiting is wanted.
func (f *fifo) Reasons(wanted bool) { f.placer.reasons(wanted) }

// Decide costs O(1) when nothing changed, else O(ready stages + placements).
func (f *fifo) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, max) {
		return p.idle(now)
	}
	for !p.full() && p.pass() {
		for j, at := s.NextReady(0); j != nil && !p.full(); j, at = s.NextReady(at) {
			for _, g := range j.Stages {
				if !g.Ready() {
					continue
				}
				if f.strict && p.head != nil {
					p.wait(scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonHeadOfLine, Tasks: g.Pending, Behind: p.head.ID()})
					continue
				}
				p.placeAll(g)
			}
		}
	}
	return p.end()
}
