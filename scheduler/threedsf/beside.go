package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Behind a kept node (Config.Reserve) tasks start that do not put off whom it is
// kept for, by the bounds of what runs there: EASY backfilling (Lifka) on one
// node. A task whose bound ends before the room is there may start, and any task
// that finds room beside it then. Without bounds nothing starts.

// leaving is when a task on a node should be gone by its bound.
type leaving struct {
	end scheduler.Time
	a   *scheduler.Attempt
}

// candidate is a node that could be kept.
type candidate struct {
	id   scheduler.NodeID
	at   scheduler.Time
	near float64
}

// isBounded tells whether any job has a bound, or had one: then it costs O(1), else
// O(what happened since it was last asked).
func (p *Policy) isBounded() bool {
	k := &p.keep
	if k.bounded && k.state == p.s {
		return true
	}
	look := func(j *scheduler.Job) { k.bounded = k.bounded || (j != nil && j.Spec.Bound > 0) }
	if k.state != p.s || !p.s.WorkSince(k.work, func(w scheduler.Worked) { look(p.s.Job(w.Job)) }) {
		k.bounded = false
		for j := range p.s.Jobs() {
			look(j)
		}
	}
	k.state, k.work = p.s, p.s.Work()
	return k.bounded
}

// keepSoonest is keepFor where bounds are known: of the nodes looked at it keeps
// those that should have room soonest; of equals, as where bounds do not say,
// those that lack least. What starts behind a kept node does not put its instant
// off, so that the next cycle keeps the same one. O(lookedAt x attempts on a node).
func (p *Policy) keepSoonest(g *scheduler.Stage) {
	k := &p.keep
	nodes := p.s.Nodes()
	k.candidates = k.candidates[:0]
	from := int(uint64(g.Job.Spec.ID) % uint64(max(1, len(nodes))))
	for i := range min(len(nodes), lookedAt) {
		n := nodes[(from+i)%len(nodes)]
		if !n.Takes() || k.by[n.Spec.ID] != nil {
			continue
		}
		if near := n.Nearness(g.Spec.Demand); near >= 0 {
			k.candidates = append(k.candidates, candidate{n.Spec.ID, p.roomAt(n, g), near})
		}
	}
	slices.SortStableFunc(k.candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.near, a.near))
	})
	for i := range min(len(k.candidates), int(g.Startable())) {
		if p.isFull() {
			return
		}
		p.keepNode(k.candidates[i].id, g, k.candidates[i].at)
	}
}

// roomAt is the first instant at which a node should have room for a task of a
// stage by the bounds of what runs there, Never where they do not say. What ran
// past its bound counts as gone since then: no instant changes as time passes.
func (p *Policy) roomAt(n *scheduler.Node, g *scheduler.Stage) scheduler.Time {
	k := &p.keep
	k.ends = k.ends[:0]
	if !n.Releasing.IsZero() {
		return scheduler.Never
	}
	for a := range p.s.AttemptsOn(n.Spec.ID) {
		if end := p.goneBy(n, a); end < scheduler.Never {
			k.ends = append(k.ends, leaving{end, a})
		}
	}
	slices.SortFunc(k.ends, func(x, y leaving) int { return cmp.Or(cmp.Compare(x.end, y.end), x.a.ID.Compare(y.a.ID)) })
	room := p.roomNow(n)
	for _, e := range k.ends {
		if room.add(e.a); room.fits(g) {
			return e.end
		}
	}
	return scheduler.Never
}

// goneBy is when an attempt that runs on a node should be gone by its bound; Never
// where nobody knows.
func (p *Policy) goneBy(n *scheduler.Node, a *scheduler.Attempt) scheduler.Time {
	j := p.s.StageOf(a).Job
	if j.Spec.Bound <= 0 || a.Node != n.Spec.ID || a.Level != scheduler.LevelRunning || a.Target != 0 {
		return scheduler.Never
	}
	return p.boundOf(a, j)
}

// leavesRoom tells whether d more of a job on a disk of a kept node, with space,
// does not put off whom the node is kept for. O(attempts there).
func (p *Policy) leavesRoom(n *scheduler.Node, j *scheduler.Job, d scheduler.Resources, space int64, disk int16) bool {
	at := p.keep.at[n.Spec.ID]
	if at == scheduler.Never {
		return false
	}
	if j.Spec.Bound > 0 && p.now.Add(j.Spec.Bound) <= at {
		return true
	}
	room := p.roomNow(n)
	room.free = room.free.Sub(d)
	if disk >= 0 {
		room.disks[disk].FreeIO -= d[scheduler.IO]
		room.disks[disk].FreeSpace -= space
	}
	for a := range p.s.AttemptsOn(n.Spec.ID) {
		if p.goneBy(n, a) <= at {
			room.add(a)
		}
	}
	return room.fits(p.keep.by[n.Spec.ID])
}

// room is what is free on a node when some of its tasks are gone.
type room struct {
	free  scheduler.Resources
	disks []scheduler.DiskUse
}

// roomNow is what is free on a node now, in scratch space.
func (p *Policy) roomNow(n *scheduler.Node) room {
	p.disks = append(p.disks[:0], n.Disks...)
	return room{n.Free, p.disks}
}

// add gives back what an attempt holds.
func (r *room) add(a *scheduler.Attempt) {
	r.free = r.free.Add(a.Held.Resources)
	if a.Disk >= 0 {
		r.disks[a.Disk].FreeIO += a.Held.Resources[scheduler.IO]
		r.disks[a.Disk].FreeSpace += a.Held.Disk
	}
}

// fits tells whether a task of a stage has room.
func (r *room) fits(g *scheduler.Stage) bool {
	d := g.Spec.Demand
	if d[scheduler.CPU] > r.free[scheduler.CPU] || d[scheduler.Memory] > r.free[scheduler.Memory] {
		return false
	}
	if len(r.disks) == 0 {
		return d[scheduler.IO] == 0 && g.Spec.Disk == 0
	}
	return slices.ContainsFunc(r.disks, func(k scheduler.DiskUse) bool { return k.FreeIO >= d[scheduler.IO] && k.FreeSpace >= g.Spec.Disk })
}
