package threedsf

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Scores returns the numbers that a decision now would use, one a line: the share of each tenant
// with ready work, now and with its next task; the latest start of each deadline job with ready
// work, in lane order; and for each waiting stage with much input, when a node of its input becomes
// free and how long a transfer would take. It is for tests and diagnostics.
func (p *Policy) Scores(s *scheduler.State, now scheduler.Time) []string {
	var out []string
	q := New(p.cfg)
	q.begin(s, now, 1)
	q.tenants.initHeads()
	for _, t := range q.tenants.active {
		if share, ok := q.shares.tree.Share(q.shares.treeID[t]); ok {
			has := q.shares.countedResources(s.Tenant(t).Used).Share(q.shares.total, int(p.cfg.Level)) / s.Tenant(t).Spec.Weight
			out = append(out, fmt.Sprintf("tenant %s: share %.4f, with its next task %.4f", s.Tenant(t).Spec.Name, has, share))
		}
	}
	slices.Sort(out)
	if p.cfg.Deadlines {
		q.deadlines.build()
		for _, l := range q.deadlines.jobs {
			q.deadlines.slack.Compute(l.job)
			out = append(out, fmt.Sprintf("deadline job %d: latest start in %v", l.job.Spec.ID, q.deadlines.slack.LatestStart().Sub(now)))
		}
	}
	s.Journal().Rollback(q.cycle.mark)
	if p.cfg.Locality {
		out = append(out, q.scoreWaits()...)
	}
	return out
}

func (p *Policy) scoreWaits() []string {
	var out []string
	p.waits.estimator.Reset(p.cycle.s)
	for j := range p.cycle.s.Jobs() {
		for _, g := range j.Stages {
			if !g.Ready() || !p.cycle.usesMatching(g) {
				continue
			}
			estimate := p.waits.estimator.WaitOrMove(p.cycle.s, g, g.NextPending(0), &p.cfg.Network, p.cycle.now)
			release := "never"
			if estimate.Release != scheduler.Never {
				release = estimate.Release.Sub(p.cycle.now).String()
			}
			out = append(out, fmt.Sprintf("stage %s: node %d of its input free in %s, transfer %v", g.ID(), estimate.Node, release, estimate.Transfer.Round(time.Millisecond)))
		}
	}
	return out
}
