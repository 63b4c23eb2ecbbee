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
// with the State where the State says that something happened since, or where what
// is known holds only until an instant that has come, and changes the plan where
// they differ.
type kept struct {
	valid  bool // the plan holds exactly what stands below
	state  *scheduler.State
	work   uint64 // State.Work when it was compared last
	facts  uint64 // State.NodeChanges when the nodes were
	stirs  uint64 // State.LastVersion when their attempts were
	nodes  []keptNode
	due    []scheduler.NodeID // to be looked at again in the next cycle
	passes []passes           // a heap: the first at the root
	looks  []scheduler.NodeID // scratch
	owners map[scheduler.ProjectID]*keptOwner
	visit  uint64

	passing    map[scheduler.ProjectID]scheduler.Time // whose description holds only until an instant
	unpromised map[scheduler.ProjectID]*keptOwner
	until      scheduler.Time        // of the description at hand
	touched    []scheduler.ProjectID // scratch

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

	version uint64         // of the node, when of was compared last
	until   scheduler.Time // of holds until then, as long as the version stays
}

// passes is an instant until which what is known of a node holds, or held before it
// was looked at again.
type passes struct {
	until scheduler.Time
	node  scheduler.NodeID
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
	k.valid, k.nodes, k.due, k.passes, k.owners = false, k.nodes[:0], k.due[:0], k.passes[:0], map[scheduler.ProjectID]*keptOwner{}
	k.passing, k.unpromised = map[scheduler.ProjectID]scheduler.Time{}, map[scheduler.ProjectID]*keptOwner{}
}

func (k *kept) addNode(n *scheduler.Node) {
	k.nodes = append(k.nodes, keptNode{capacity: n.Spec.Capacity, disks: slices.Clone(n.Spec.Disks), levels: n.Spec.Levels, takes: n.Takes()})
}

// same tells whether the nodes are those that the plan was made for. O(1) where
// nothing happened to any of them.
func (k *kept) same(s *scheduler.State) bool {
	nodes := s.Nodes()
	if len(nodes) != len(k.nodes) {
		return false
	}
	if k.facts == s.NodeChanges() {
		return true
	}
	k.facts = s.NodeChanges()
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
// then it has to be restored. O(changes), and O(nodes + attempts + waiting tasks)
// where tenants have caps or too much has happened.
func (f *planned) sync(s *scheduler.State, now scheduler.Time) bool {
	k := &f.kept
	if !k.valid || k.state != s || !k.same(s) || f.bounds != anyBound(s) {
		return false
	}
	f.begin()
	k.valid = false
	since := k.work
	k.work = s.Work()
	f.plan.Profile().Forget(now)
	f.occupy(s, now)
	if s.Capped() || !f.gatherChanged(s, since, now) {
		f.ids = f.ids[:0]
		f.fresh = f.fresh[:0]
		f.gather(s, now)
		if f.mixed || !f.agrees(s) {
			return false
		}
	} else if f.mixed || !f.agreesOnChanged(s) {
		return false
	}
	f.plan.Changed()
	return true
}

// occupy takes what attempts hold, and gives back what they held, on the nodes on
// which something happened and on those of which what is known has passed.
func (f *planned) occupy(s *scheduler.State, now scheduler.Time) {
	k := &f.kept
	k.looks, k.due = append(k.looks[:0], k.due...), k.due[:0]
	if !s.NodesSince(k.stirs, func(id scheduler.NodeID) { k.looks = append(k.looks, id) }) {
		k.looks = k.looks[:0]
		for id := range k.nodes {
			k.looks = append(k.looks, scheduler.NodeID(id))
		}
	}
	k.stirs = s.LastVersion()
	for len(k.passes) > 0 && (now >= k.passes[0].until || k.past(k.passes[0])) {
		k.looks = append(k.looks, k.nextPassing().node)
	}
	slices.Sort(k.looks)
	for _, id := range slices.Compact(k.looks) {
		o := &k.nodes[id]
		v := s.NodeVersion(id)
		if o.version == v && now < o.until {
			continue
		}
		was := o.until
		f.occupyNode(s, id, o, now)
		o.version = v
		if o.until <= now {
			k.due = append(k.due, id)
		} else if o.until < scheduler.Never && o.until != was {
			k.passesAt(o.until, id)
		}
	}
	for len(k.passes) > 0 && k.past(k.passes[0]) {
		k.nextPassing()
	}
	if len(k.passes) > 0 {
		f.wakeAt(k.passes[0].until, now)
	}
}

// past tells whether a node was looked at again since.
func (k *kept) past(p passes) bool { return k.nodes[p.node].until != p.until }

// passesAt remembers until when what is known of a node holds. O(log nodes).
func (k *kept) passesAt(until scheduler.Time, id scheduler.NodeID) {
	if len(k.passes) > 4*len(k.nodes)+64 { // most are of nodes that were looked at again
		k.passes = slices.DeleteFunc(k.passes, k.past)
		slices.SortFunc(k.passes, func(a, b passes) int { return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.node, b.node)) })
		k.passes = slices.Compact(k.passes)
	}
	k.passes = append(k.passes, passes{until, id})
	for i := len(k.passes) - 1; i > 0 && k.passes[(i-1)/2].until > k.passes[i].until; i = (i - 1) / 2 {
		k.passes[(i-1)/2], k.passes[i] = k.passes[i], k.passes[(i-1)/2]
	}
}

// nextPassing takes out what passes first. O(log nodes).
func (k *kept) nextPassing() passes {
	first, last := k.passes[0], len(k.passes)-1
	k.passes[0] = k.passes[last]
	k.passes = k.passes[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if k.passes[c].until < k.passes[least].until {
				least = c
			}
		}
		if least == i {
			return first
		}
		k.passes[i], k.passes[least] = k.passes[least], k.passes[i]
		i = least
	}
}

// occupyNode is occupy for one node. What is known of it then holds until the
// first of its attempts should be gone.
func (f *planned) occupyNode(s *scheduler.State, id scheduler.NodeID, o *keptNode, now scheduler.Time) {
	k := &f.kept
	k.here = k.here[:0]
	same := true
	o.until = scheduler.Never
	for a := range s.AttemptsOn(id) {
		late := f.boundOf(s, a) < now
		f.late = f.late || late
		x := occupant{a.ID, a.Seq, a.Run, a.Disk, a.FromDisk, a.Node, a.From, f.endOf(s, a, now), a.Held, a.FromHeld}
		f.wakeAt(x.end, now)
		if o.until = min(o.until, x.end); late {
			o.until = now
		}
		same = same && len(k.here) < len(o.of) && o.of[len(k.here)] == x
		k.here = append(k.here, x)
	}
	if !same || len(o.of) != len(k.here) {
		f.exchange(o.of, k.here, now)
		o.of = append(o.of[:0], k.here...)
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
	clear(k.passing)
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.owner(j)
		if o := k.owners[id]; o != nil && o.visit == k.visit {
			continue
		}
		if f.gatherOne(s, id, j, now) {
			f.ids = append(f.ids, id)
		}
	}
	if len(k.owners) == len(f.ids) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(k.owners)) {
		if o := k.owners[id]; o.visit != k.visit {
			f.dropOwner(s, id)
		}
	}
}

// gatherOne brings in what waits of one project, of which j is an active job, and
// tells whether anything does.
func (f *planned) gatherOne(s *scheduler.State, id scheduler.ProjectID, j *scheduler.Job, now scheduler.Time) bool {
	k := &f.kept
	k.until = scheduler.Never
	f.describe(s, id, j, now, &k.describes)
	if k.until < scheduler.Never { // also where none of it may be planned now
		k.passing[id] = k.until
	} else {
		delete(k.passing, id)
	}
	if len(k.describes.Requests) == 0 {
		return false
	}
	o := k.owners[id]
	if o == nil {
		o = &keptOwner{}
		k.owners[id] = o
	}
	o.visit = k.visit
	switch {
	case !o.known || !slices.Equal(o.kinds, k.kinds) || !f.lessOf(s, &o.project, now):
		f.bringIn(s, id, o)
	case !o.promised:
		f.plan.Unpromise(id) // Complete promised it, and nobody was told
	default:
		return true
	}
	if !o.promised {
		k.unpromised[id] = o
	}
	f.fresh = append(f.fresh, id)
	return true
}

// lessOf tells whether what waits of a project is what was planned or, where none
// of it comes after anything, a part of that: then it takes the rest out of the
// plan, and writes that down.
func (f *planned) lessOf(s *scheduler.State, was *backfill.Project, now scheduler.Time) bool {
	here := &f.kept.describes
	if sameProject(was, here) {
		return true
	}
	if !isPartOf(here, was) {
		return false
	}
	next := 0
	for i := range was.Requests {
		r := &was.Requests[i]
		var left []int32 // of its tasks
		if next < len(here.Requests) && here.Requests[next].Job == r.Job && here.Requests[next].Stage == r.Stage {
			left = here.Requests[next].Tasks
			next++
		}
		for _, task := range r.Tasks {
			if len(left) > 0 && left[0] == task {
				left = left[1:]
				continue
			}
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			f.plan.End(k, now)
			f.forgetIfGone(s, k)
		}
	}
	*was = cloneProject(here)
	return true
}

// isPartOf tells whether a project is a part of the work of another in which
// nothing comes after anything.
func isPartOf(part, whole *backfill.Project) bool {
	if part.Submitted != whole.Submitted || part.High != whole.High {
		return false
	}
	next := 0
	for i := range whole.Requests {
		w := &whole.Requests[i]
		if len(w.After) > 0 || w.NotBefore != 0 || w.Parallel != 0 {
			return false
		}
		if next == len(part.Requests) || part.Requests[next].Job != w.Job || part.Requests[next].Stage != w.Stage {
			continue
		}
		p := &part.Requests[next]
		if !sameButTasks(p, w) || !areAmong(p.Tasks, w.Tasks) {
			return false
		}
		next++
	}
	return next == len(part.Requests)
}

// areAmong tells whether some tasks are all among others. Both are in order.
func areAmong(some, others []int32) bool {
	for _, task := range others {
		if len(some) > 0 && some[0] == task {
			some = some[1:]
		}
	}
	return len(some) == 0
}

// dropOwner takes out a project of which nothing waits any more.
func (f *planned) dropOwner(s *scheduler.State, id scheduler.ProjectID) {
	k := &f.kept
	f.forgetGone(s, k.owners[id])
	f.plan.Remove(id)
	delete(k.owners, id)
	delete(k.unpromised, id)
}

// gatherChanged is gather for the projects to which something happened since a
// position in the State's log, those that were promised nothing, and those of
// which what is known has passed. False means that too much has happened.
func (f *planned) gatherChanged(s *scheduler.State, since uint64, now scheduler.Time) bool {
	k := &f.kept
	k.touched = k.touched[:0]
	all := s.WorkSince(since, func(w scheduler.Worked) {
		switch {
		case f.projects && w.Project != 0:
			k.touched = append(k.touched, w.Project)
		case w.Job != 0:
			k.touched = append(k.touched, scheduler.ProjectID(w.Job)|1<<63)
		}
	})
	if !all {
		return false
	}
	for id := range k.unpromised { // they are sorted below
		k.touched = append(k.touched, id)
	}
	for id, until := range k.passing {
		if now >= until {
			k.touched = append(k.touched, id)
		}
	}
	slices.Sort(k.touched)
	k.touched = slices.Compact(k.touched)
	slices.SortFunc(k.touched, func(a, b scheduler.ProjectID) int {
		x, y := f.firstOf(s, a), f.firstOf(s, b)
		switch {
		case x == nil || y == nil:
			return cmp.Or(cmp.Compare(btoi(x == nil), btoi(y == nil)), cmp.Compare(a, b))
		default:
			return cmp.Or(cmp.Compare(x.Spec.Submitted, y.Spec.Submitted), cmp.Compare(x.Spec.ID, y.Spec.ID))
		}
	})
	k.visit++
	for _, id := range k.touched {
		j := f.firstOf(s, id)
		if j == nil {
			delete(k.passing, id)
		}
		if (j == nil || !f.gatherOne(s, id, j, now)) && k.owners[id] != nil {
			f.dropOwner(s, id)
		}
	}
	return true
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// firstOf gives the active job of a project that comes first in order of
// submission, nil if none is.
func (f *planned) firstOf(s *scheduler.State, id scheduler.ProjectID) *scheduler.Job {
	var first *scheduler.Job
	look := func(j *scheduler.Job) {
		if j != nil && j.Phase == scheduler.JobActive && (first == nil || j.Spec.Submitted < first.Spec.Submitted) {
			first = j
		}
	}
	if id>>63 == 1 {
		look(s.Job(scheduler.JobID(id &^ (1 << 63))))
		return first
	}
	if p := s.Project(id); p != nil {
		for _, j := range p.Jobs { // in order of id
			look(s.Job(j))
		}
	}
	return first
}

// waitingIDs lists the projects with work that waits in order of their first
// active jobs.
func (f *planned) waitingIDs(s *scheduler.State) []scheduler.ProjectID {
	k := &f.kept
	f.ids = f.ids[:0]
	k.visit++
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.owner(j)
		if o := k.owners[id]; o != nil && o.visit != k.visit {
			o.visit = k.visit
			f.ids = append(f.ids, id)
		}
	}
	return f.ids
}

// forgetGone forgets the reservations of a project's work that are not there any
// more.
func (f *planned) forgetGone(s *scheduler.State, o *keptOwner) {
	for i := range o.project.Requests {
		r := &o.project.Requests[i]
		for _, task := range r.Tasks {
			f.forgetIfGone(s, backfill.Key{Job: r.Job, Stage: r.Stage, Task: task})
		}
	}
}

func (f *planned) forgetIfGone(s *scheduler.State, k backfill.Key) {
	if id, ok := f.byKey[k]; ok && s.Reservation(id) == nil {
		delete(f.byKey, k)
	}
}

// bringIn restores one project as it was just described.
func (f *planned) bringIn(s *scheduler.State, id scheduler.ProjectID, o *keptOwner) {
	if o.known {
		f.forgetGone(s, o)
		f.plan.Remove(id)
	}
	o.known, o.kinds, o.project = true, append(o.kinds[:0], f.kept.kinds...), cloneProject(&f.kept.describes)
	promise, promised := s.Note(noteKey(scheduler.NotePromise, id))
	latest, _ := s.Note(noteKey(scheduler.NoteLatestStart, id))
	if o.promised = promised; promised {
		delete(f.kept.unpromised, id)
	}
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

// agreesOnChanged is agrees for the projects that gatherChanged looked at.
func (f *planned) agreesOnChanged(s *scheduler.State) bool {
	f.nextID = lastID(s)
	for _, id := range f.kept.touched {
		if !f.agreesOn(s, id) {
			return false
		}
	}
	return true
}

// agreesOn tells whether the State's reservations for a project are the plan's.
func (f *planned) agreesOn(s *scheduler.State, id scheduler.ProjectID) bool {
	n, all := 0, true
	look := func(id scheduler.JobID) {
		if j := s.Job(id); j != nil {
			n += len(j.Reservations())
			for _, r := range j.Reservations() {
				all = all && f.agreesWith(r)
			}
		}
	}
	if id>>63 == 1 {
		look(scheduler.JobID(id &^ (1 << 63)))
	} else if p := s.Project(id); p != nil {
		for _, j := range p.Jobs {
			look(j)
		}
	}
	return all && n == f.plan.Placed(id)
}

// agreesWith tells whether a reservation is the plan's.
func (f *planned) agreesWith(r *scheduler.Reservation) bool {
	k := keyOf(r)
	spot, end, ok := f.plan.At(k)
	return ours(r) && ok && f.byKey[k] == r.ID && spot == (backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}) && end == r.End
}

// agrees tells whether the State's reservations are the plan's, one by one.
func (f *planned) agrees(s *scheduler.State) bool {
	n := 0
	f.nextID = lastID(s)
	for _, r := range s.Reservations() {
		if !ours(r) {
			continue
		}
		if n++; !f.agreesWith(r) {
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
	return sameButTasks(&a, &b) && slices.Equal(a.Tasks, b.Tasks)
}

func sameButTasks(a, b *backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.Soft == b.Soft && a.NotBefore == b.NotBefore && a.Parallel == b.Parallel &&
		a.Held == nil && b.Held == nil && sameNeed(&a.Need, &b.Need) && slices.Equal(a.After, b.After)
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
