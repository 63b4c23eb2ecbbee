package threedsf

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Scores gives the numbers by which the policy would decide now, one line each:
// the share of each tenant with ready work, now and with its next task; the
// latest start of each deadline job with ready work, in the lane's order; and
// for each waiting stage that reads much when its data's nodes have room and how
// long its data would travel. It allocates and is for tests and for people.
func (p *Policy) Scores(s *scheduler.State, now scheduler.Time) []string {
	var out []string
	q := New(p.cfg)
	q.begin(s, now, 1)
	q.firstHeads()
	for _, t := range q.active {
		if share, ok := q.shares.tree.Share(q.shares.idOf[t]); ok {
			has := q.shares.counted(s.Tenant(t).Used).Share(q.shares.total, int(p.cfg.Level)) / s.Tenant(t).Spec.Weight
			out = append(out, fmt.Sprintf("tenant %s: share %.4f, with its next task %.4f", s.Tenant(t).Spec.Name, has, share))
		}
	}
	slices.Sort(out)
	if p.cfg.Deadlines {
		q.fillLane()
		for _, l := range q.lane {
			q.outlook.Of(l.job)
			out = append(out, fmt.Sprintf("deadline job %d: latest start in %v", l.job.Spec.ID, q.outlook.LatestStart().Sub(now)))
		}
	}
	s.Rollback(q.mark)
	if p.cfg.Locality {
		out = append(out, q.scoreWaits()...)
	}
	return out
}

func (p *Policy) scoreWaits() []string {
	var out []string
	p.judge.Begin(p.s)
	for j := range p.s.Jobs() {
		for _, g := range j.Stages {
			if !g.Ready() || !p.matches(g) {
				continue
			}
			v := p.judge.Judge(p.s, g, g.NextPending(0), &p.cfg.Network, p.now)
			release := "never"
			if v.Release != scheduler.Never {
				release = v.Release.Sub(p.now).String()
			}
			out = append(out, fmt.Sprintf("stage %s: room at its data on node %d in %s, transfer %v", g.ID(), v.Node, release, v.Transfer.Round(time.Millisecond)))
		}
	}
	return out
}
