package scheduler

import (
	"cmp"
	"slices"
)

// Reservations is the reservations of a State: by id, by node and by kind.
type Reservations struct{ s *State }

// UnplannedReleases counts releases of capacity at another time than planned: ends of attempts except at their bound,
// reservations deleted with their job or project, suspensions of reduces for maps. Policies compress when it has grown.
func (rs Reservations) UnplannedReleases() uint64 { return rs.s.unplannedReleases }

// Left returns how many more reservations the State accepts. A policy must ask before it makes new ones. O(1).
func (rs Reservations) Left() int { return maxReservations - len(rs.s.reservations) }

// All returns all reservations by id. The slice belongs to State.
func (rs Reservations) All() []*Reservation { return rs.s.reservations }

// Guarantees returns the reservations that are guarantees (IsGuarantee) by (Start, ID). The slice belongs to State.
func (rs Reservations) Guarantees() []*Reservation { return rs.s.guarantees }

// Unguaranteed returns the reservations that are not guarantees by (Start, ID). The slice belongs to State.
func (rs Reservations) Unguaranteed() []*Reservation { return rs.s.unguaranteed }

// On returns the reservations on a node by (Start, ID). The slice belongs to State.
func (rs Reservations) On(n NodeID) []*Reservation { return rs.s.cluster.nodes[n].reserved }

// NextID returns the id after that of the last reservation. O(1).
func (rs Reservations) NextID() ReservationID {
	if n := len(rs.s.reservations); n > 0 {
		return rs.s.reservations[n-1].ID + 1
	}
	return 1
}

// Get returns a reservation, or nil.
func (rs Reservations) Get(id ReservationID) *Reservation {
	if i, ok := rs.find(id); ok {
		return rs.s.reservations[i]
	}
	return nil
}

// find returns the index of a reservation, or where it would be inserted.
func (rs Reservations) find(id ReservationID) (int, bool) {
	if n := len(rs.s.reservations); n > 0 && rs.s.reservations[n-1].ID < id {
		return n, false
	}
	return slices.BinarySearchFunc(rs.s.reservations, id, func(r *Reservation, id ReservationID) int {
		return cmp.Compare(r.ID, id)
	})
}

func byStart(a, b *Reservation) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ID, b.ID))
}

// put adds or replaces a reservation. It returns the old one; for a new reservation it returns one with only the id.
func (rs Reservations) put(r Reservation) (old Reservation, had bool) {
	i, had := rs.find(r.ID)
	if had {
		old = *rs.s.reservations[i]
		rs.unlink(rs.s.reservations[i])
	} else {
		old.ID = r.ID
		rs.s.reservations = slices.Insert(rs.s.reservations, i, &Reservation{})
	}
	*rs.s.reservations[i] = r
	rs.link(rs.s.reservations[i])
	return old, had
}

func (rs Reservations) drop(i int) {
	rs.unlink(rs.s.reservations[i])
	rs.s.reservations = slices.Delete(rs.s.reservations, i, i+1)
}

func (rs Reservations) link(r *Reservation) {
	rs.count(r, 1)
	if rs.s.timeline != nil {
		rs.s.timeline.addReservation(rs.s, r)
	}
	for _, list := range rs.listsOf(r) {
		i, _ := slices.BinarySearchFunc(*list, r, byStart)
		*list = slices.Insert(*list, i, r)
	}
}

func (rs Reservations) unlink(r *Reservation) {
	rs.count(r, -1)
	if rs.s.timeline != nil {
		rs.s.timeline.dropReservation(r.ID)
	}
	for _, list := range rs.listsOf(r) {
		if i, ok := slices.BinarySearchFunc(*list, r, byStart); ok {
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

func (rs Reservations) listsOf(r *Reservation) [2]*[]*Reservation {
	ofKind := &rs.s.unguaranteed
	if r.Kind.IsGuarantee() {
		ofKind = &rs.s.guarantees
	}
	return [2]*[]*Reservation{&rs.s.cluster.nodes[r.Node].reserved, ofKind}
}

// count adds (n 1) a reservation to its job's list and the counts, or removes it (n -1).
func (rs Reservations) count(r *Reservation, n int32) {
	if !r.Kind.IsGuarantee() {
		rs.s.cluster.nodes[r.Node].unguaranteed += n
	}
	j := rs.s.jobs[r.Job]
	if j == nil {
		return
	}
	rs.s.changeLog.recordJob(j)
	i, _ := slices.BinarySearchFunc(j.reservations, r, func(a, b *Reservation) int { return cmp.Compare(a.ID, b.ID) })
	if n > 0 {
		j.reservations = slices.Insert(j.reservations, i, r)
	} else {
		j.reservations = slices.Delete(j.reservations, i, i+1)
	}
	rs.indexTask(r, n > 0)
	if r.Kind.IsGuarantee() {
		j.Guarantees += n
	}
}

// indexTask lists a reservation under its task, or removes it. If a task has several, the one with
// the highest id is listed. O(1); O(reservations of the job) while one of its tasks has several.
func (rs Reservations) indexTask(r *Reservation, add bool) {
	g := rs.s.Stage(r.StageID())
	if g == nil || !r.IsPlanOfTask() || r.Task >= g.Spec.Tasks {
		return
	}
	if g.planned.isZero() {
		g.planned = newTaskTable[*Reservation](g.Spec.Tasks)
	}
	listed := g.planned.get(r.Task)
	switch {
	case add && listed == nil:
		listed = r
	case add:
		g.Job.doubleReserved++
		if listed.ID < r.ID {
			listed = r
		}
	case g.Job.doubleReserved == 0:
		listed = nil
	default:
		listed = nil
		for _, o := range g.Job.reservations {
			if o != r && o.Stage == r.Stage && o.Task == r.Task && o.IsPlanOfTask() {
				listed = o
			}
		}
		if listed != nil {
			g.Job.doubleReserved--
		}
	}
	g.planned.set(r.Task, listed)
}

// PlannedAt returns the reservation that plans a task of the stage on a node, or nil. If there are
// several it returns the one with the highest id. O(1).
func (g *Stage) PlannedAt(task int32) *Reservation {
	if g.planned.isZero() || task >= g.Spec.Tasks {
		return nil
	}
	return g.planned.get(task)
}

// GuaranteeTenant returns the tenant that a job's guarantees are charged to: its project's tenant,
// else its own (as for caps). O(1).
func (rs Reservations) GuaranteeTenant(j *Job) TenantID {
	if p := rs.s.projects[j.Spec.Project]; p != nil {
		return p.Spec.Tenant
	}
	return j.Spec.Tenant
}
