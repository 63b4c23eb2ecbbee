package policies

import (
	"cmp"
	"maps"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// kept is what the plan that was kept since the last cycle was made of: what it
// knows of nodes, attempts and waiting work. It is a cache; sync compares it
// with the State and changes the plan where they differ.
type kept struct {
	valid  bool // the plan holds exactly what stands below
	nodes  []keptNode
	owners map[scheduler.ProjectID]*keptOwner
	visit  uint64

	describes backfill.Project // scratch, with the slices of its requests
	tasks     []int32
	amounts   []int64
	kinds     []scheduler.ReservationKind
	here      []occupant
}

type keptNode struct {
	capacity scheduler.Resources
	disks    []scheduler.Disk
	levels   scheduler.LevelSet
	takes    bool
	of       []occupant // in order of placement
}

// occupant is an attempt with what it is taken to hold, and until when.
type occupant struct {
	id             scheduler.AttemptID
	seq            uint64
	run            int32
	disk, fromDisk int16
	node, from     scheduler.NodeID
	end            scheduler.Time
	held, fromHeld scheduler.Held
}

// keptOwner is a project, or a job that is one alone, with work that waits.
type keptOwner struct {
	project  backfill.Project
	kinds    []scheduler.ReservationKind // of its jobs
	visit    uint64
	known    bool // to the planner
	promised bool
}

func (k *kept) reset() {
	k.valid, k.nodes, k.owners = false, k.nodes[:0], map[scheduler.ProjectID]*keptOwner{}
}

func (k *kept) addNode(n *scheduler.Node) {
	k.nodes = append(k.nodes, keptNode{capacity: n.Spec.Capacity, disks: slices.Clone(n.Spec.Disks), levels: n.Spec.Levels, takes: n.Takes()})
}

// same tells whether the nodes are those that the plan was made for.
func (k *kept) same(nodes []*scheduler.Node) bool {
	if len(nodes) != len(k.nodes) {
		return false
	}
	for i, n := range nodes {
		o := &k.nodes[i]
		if o.capacity != n.Spec.Capacity || o.levels != n.Spec.Levels || o.takes != n.Takes() || !slices.Equal(o.disks, n.Spec.Disks) {
			return false
		}
	}
	return true
}

// sync brings the kept plan in line with the State. False means that there is
// none, or that they differ by more than work that came, started and ended:
// then it has to be restored.
func (f *planned) sync(s *scheduler.State, now scheduler.Time) bool {
	if !f.kept.valid || !f.kept.same(s.Nodes()) {
		return false
	}
	f.begin()
	f.kept.valid = false
	f.plan.Profile().Forget(now)
	f.occupy(s, now)
	f.gather(s, now)
	if f.mixed || !f.agrees(s) {
		return false
	}
	f.plan.Changed()
	return true
}

// occupy takes what attempts hold, and gives back what they held.
func (f *planned) occupy(s *scheduler.State, now scheduler.Time) {
	k := &f.kept
	for i, n := range s.Nodes() {
		was := k.nodes[i].of
		k.here = k.here[:0]
		same := true
		for a := range s.AttemptsOn(n.Spec.ID) {
			f.late = f.late || f.boundOf(s, a) < now
			o := occupant{a.ID, a.Seq, a.Run, a.Disk, a.FromDisk, a.Node, a.From, f.endOf(s, a, now), a.Held, a.FromHeld}
			f.wakeAt(o.end, now)
			same = same && len(k.here) < len(was) && was[len(k.here)] == o
			k.here = append(k.here, o)
		}
		if !same || len(was) != len(k.here) {
			f.exchange(was, k.here, now)
			k.nodes[i].of = append(was[:0], k.here...)
		}
	}
}

// exchange makes the profile hold what is there now instead of what was. Both
// are in order of placement.
func (f *planned) exchange(was, here []occupant, now scheduler.Time) {
	for i, j := 0, 0; i < len(was) || j < len(here); {
		order := 0
		switch {
		case i == len(was):
			order = 1
		case j == len(here):
			order = -1
		default:
			order = cmp.Compare(was[i].seq, here[j].seq)
		}
		if order == 0 && was[i] == here[j] {
			i, j = i+1, j+1
			continue
		}
		if order <= 0 {
			f.hold(&was[i], now, false)
			i++
		}
		if order >= 0 {
			f.hold(&here[j], now, true)
			j++
		}
	}
}

// hold takes from the profile what an attempt holds from now on, on both nodes
// while it moves, or gives it back.
func (f *planned) hold(o *occupant, now scheduler.Time, take bool) {
	if o.end <= now {
		return
	}
	prof := f.plan.Profile()
	change := func(node scheduler.NodeID, disk int16, h *scheduler.Held) {
		need := backfill.NodeNeed(h.Resources, h.Disk)
		if take {
			prof.Take(int32(node), disk, now, o.end, &need)
			return
		}
		prof.Give(int32(node), disk, now, o.end, &need)
		f.plan.Freed(int32(node))
	}
	change(o.node, o.disk, &o.held)
	if o.from != scheduler.NoNode {
		change(o.from, o.fromDisk, &o.fromHeld)
	}
}

// gather brings in the projects with work that waits, where it is not known
// already, and takes out what does not wait any more.
func (f *planned) gather(s *scheduler.State, now scheduler.Time) {
	k := &f.kept
	k.visit++
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.owner(j)
		o := k.owners[id]
		if o != nil && o.visit == k.visit {
			continue
		}
		f.describe(s, id, j, now, &k.describes)
		if len(k.describes.Requests) == 0 {
			continue
		}
		f.ids = append(f.ids, id)
		if o == nil {
			o = &keptOwner{}
			k.owners[id] = o
		}
		o.visit = k.visit
		if !o.known || !slices.Equal(o.kinds, k.kinds) || !sameProject(&o.project, &k.describes) {
			f.bringIn(s, id, o)
		} else if !o.promised {
			f.plan.Unpromise(id) // Complete promised it, and nobody was told
		} else {
			continue
		}
		f.fresh = append(f.fresh, id)
	}
	if len(k.owners) == len(f.ids) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(k.owners)) {
		if o := k.owners[id]; o.visit != k.visit {
			f.plan.Remove(id)
			delete(k.owners, id)
		}
	}
}

// bringIn restores one project as it was just described.
func (f *planned) bringIn(s *scheduler.State, id scheduler.ProjectID, o *keptOwner) {
	if o.known {
		f.plan.Remove(id)
	}
	o.known, o.kinds, o.project = true, append(o.kinds[:0], f.kept.kinds...), cloneProject(&f.kept.describes)
	promise, promised := s.Note(noteKey(scheduler.NotePromise, id))
	latest, _ := s.Note(noteKey(scheduler.NoteLatestStart, id))
	o.promised = promised
	err := f.plan.Restore(o.project, backfill.Quote{Departure: promise.At, Latest: latest.At}, promised,
		func(k backfill.Key) (spot backfill.Spot, started, pinned, plannedBefore bool) {
			g := s.Stage(scheduler.StageID{Job: k.Job, Stage: k.Stage})
			if a := suspendedAt(s, g, k.Task); a != nil {
				pinned = true
				spot = backfill.Spot{Bin: int32(a.Node), Disk: a.Disk}
			}
			if r := f.reservation(s, k); r != nil && (!pinned || (int32(r.Node) == spot.Bin && r.OnDisk == spot.Disk)) {
				return backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}, false, pinned, true
			}
			return spot, false, pinned, false
		})
	if err != nil {
		panic("policies: a job that State took cannot be planned: " + err.Error())
	}
}

// agrees tells whether the State's reservations are the plan's, one by one.
func (f *planned) agrees(s *scheduler.State) bool {
	n := 0
	f.nextID = 0
	for _, r := range s.Reservations() {
		if !ours(r) {
			continue
		}
		n++
		f.nextID = max(f.nextID, r.ID)
		k := keyOf(r)
		spot, end, ok := f.plan.At(k)
		if !ok || f.byKey[k] != r.ID || spot != (backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}) || end != r.End {
			return false
		}
	}
	if len(f.byKey) != n { // of jobs that ended
		maps.DeleteFunc(f.byKey, func(_ backfill.Key, id scheduler.ReservationID) bool { return s.Reservation(id) == nil })
	}
	return f.plan.Len()-f.plan.Unplaced() == n
}

func sameProject(a, b *backfill.Project) bool {
	return a.Submitted == b.Submitted && a.High == b.High && slices.EqualFunc(a.Requests, b.Requests, sameRequest)
}

func sameRequest(a, b backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.Soft == b.Soft && a.NotBefore == b.NotBefore && a.Parallel == b.Parallel &&
		a.Held == nil && b.Held == nil && sameNeed(&a.Need, &b.Need) && slices.Equal(a.Tasks, b.Tasks) && slices.Equal(a.After, b.After)
}

func sameNeed(a, b *backfill.Need) bool {
	return a.IO == b.IO && a.Space == b.Space && slices.Equal(a.Base, b.Base)
}

// cloneProject copies a project with everything that scratch slices hold.
func cloneProject(p *backfill.Project) backfill.Project {
	out := *p
	out.Requests = slices.Clone(p.Requests)
	for i := range out.Requests {
		r := &out.Requests[i]
		r.Tasks, r.Need.Base, r.After = slices.Clone(r.Tasks), slices.Clone(r.Need.Base), slices.Clone(r.After)
	}
	return out
}
