package plan

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// look works out what the scheduler knows of a job's time: what comes after
// each stage, and its latest start, by predictions without their errors.
func (w *work) look() {
	longest := time.Duration(0)
	for i := range w.stages {
		w.stages[i].tail = 0
	}
	for i := len(w.stages) - 1; i >= 0; i-- {
		g := &w.stages[i]
		through := g.tail
		if g.done < g.spec.Tasks {
			through += g.spec.Estimate
		}
		longest = max(longest, through)
		for _, a := range g.spec.After {
			w.stages[a].tail = max(w.stages[a].tail, through)
		}
	}
	if w.lane == 1 {
		w.key = w.spec.Deadline.Add(-longest)
	}
}

// latest is the latest instant at which the waiting tasks of a stage can begin
// on n slots so that the job is predicted to end by its deadline.
func (w *work) latest(g *part, n int32) scheduler.Time {
	switch {
	case g.waiting == 0:
		return scheduler.Never
	case n <= 0:
		return -scheduler.Never
	}
	waves := (g.waiting + n - 1) / n
	return w.spec.Deadline.Add(-g.tail).Add(-time.Duration(waves) * g.spec.Estimate)
}

// takeBack is PDSonQueue Alg. 5 for the lane: as few slots as keep a stage's
// predicted end before the deadline, each only if it cannot wait for room. A
// job that can no longer make it leaves the lane.
func (p *Planner) takeBack() {
	left := false
	for _, w := range p.lane {
		for i := range w.stages {
			g := &w.stages[i]
			if g.waiting == 0 || !w.open(g) {
				continue
			}
			if p.now > min(w.spec.Deadline, w.latest(g, g.waiting)) {
				w.lane, w.key, left = 3, 0, true
				break
			}
			p.takeBackFor(w, g)
		}
	}
	if left {
		p.sort()
	}
}

func (p *Planner) takeBackFor(w *work, g *part) {
	for g.waiting > 0 && (g.spec.MaxParallel == 0 || g.live < g.spec.MaxParallel) {
		if at := w.latest(g, g.live); at >= p.now {
			p.judgeAt(g, at.Add(1)) // so many at once are enough until then
			return
		}
		if at := w.latest(g, g.live+1); at >= p.now && p.canWait(g, at) {
			return
		}
		if !p.makeRoom(w, g) {
			return
		}
	}
}

// judgeAt has the lanes looked at again at an instant.
func (p *Planner) judgeAt(g *part, at scheduler.Time) {
	if at < scheduler.Never && at != g.judged {
		g.judged = at
		p.push(&run{}, at.Sub(p.now))
	}
}

// canWait tells whether on some node the next task to end frees enough for one
// of the stage, no later than an instant.
func (p *Planner) canWait(g *part, latest scheduler.Time) bool {
	next := make([]*run, len(p.nodes))
	for _, x := range p.queue {
		if x.job != nil && !x.gone && (next[x.node] == nil || x.at < next[x.node].at) {
			next[x.node] = x
		}
	}
	for i, x := range next {
		if x != nil && x.at <= latest && p.nodes[i].takes && g.spec.Demand.Fits(p.nodes[i].free.Add(x.demand)) {
			return true
		}
	}
	return false
}

// makeRoom suspends regular tasks on the node where the fewest are enough, those
// of low priority and the newest first, and places a task of the stage there.
func (p *Planner) makeRoom(w *work, g *part) bool {
	best, node := []*run(nil), -1
	byNode := make([][]*run, len(p.nodes))
	for _, x := range p.queue {
		if x.job != nil && !x.gone && x.job.lane > 1 && x.job.spec.Project == 0 && p.nodes[x.node].yield {
			byNode[x.node] = append(byNode[x.node], x)
		}
	}
	for i := range byNode {
		n := &p.nodes[i]
		if !n.takes || len(byNode[i]) == 0 {
			continue
		}
		if v := victims(byNode[i], n, g.spec.Demand); v != nil && (node < 0 || len(v) < len(best)) {
			best, node = v, i
		}
	}
	if node < 0 {
		return false
	}
	n := &p.nodes[node]
	for _, x := range best {
		x.kept = kept(x.demand, n)
		p.release(x, x.demand.Sub(x.kept))
		x.gone, x.left = true, x.at.Sub(p.now)
		x.job.stages[x.stage].live--
		p.asleep = append(p.asleep, x)
	}
	p.place(w, g, int32(node))
	return true
}

// kept is what a suspended task keeps of its demand on a node.
func kept(d scheduler.Resources, n *node) scheduler.Resources {
	for i := range d {
		d[i] *= n.keeps[i]
	}
	return d
}

// victims lists those that make room for a demand, or nil where all of them are
// not enough. The list is put into their order.
func victims(of []*run, n *node, d scheduler.Resources) []*run {
	free := n.free
	out := of[:0:0]
	for len(out) < len(of) && !d.Fits(free) {
		best := -1
		for i, x := range of {
			taken := false
			for _, o := range out {
				taken = taken || o == x
			}
			if taken {
				continue
			}
			if best < 0 || x.job.lane > of[best].job.lane || (x.job.lane == of[best].job.lane && x.seq > of[best].seq) {
				best = i
			}
		}
		out = append(out, of[best])
		free = free.Add(of[best].demand.Sub(kept(of[best].demand, n)))
	}
	if !d.Fits(free) {
		return nil
	}
	return out
}
