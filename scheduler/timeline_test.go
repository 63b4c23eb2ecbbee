package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// untilEstimate assumes that each attempt ends when predicted, and a second from now
// after that. Every second task is charged to its tenant.
type untilEstimate struct{ charge bool }

func (u untilEstimate) ChargeTenants() bool { return u.charge }

func (u untilEstimate) ClaimOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Claim {
	end := a.Placed.Add(10*time.Second + s.StageOf(a).Spec.Estimate)
	c := scheduler.Claim{Occupied: a.Occupied, End: end, SourceEnd: now.Add(time.Second), ValidUntil: end, Charged: u.charge && a.ID.Index%2 == 0}
	if end <= now {
		c.End, c.Overran, c.ValidUntil = now.Add(time.Second), true, now
	}
	if a.Level.Suspended() {
		c.End = scheduler.Never
	}
	if a.From != scheduler.NoNode {
		c.ValidUntil = now
	}
	return c
}

// usage is the use of a node, or of a tenant's account, in an interval: the slow and obvious form
// of a timeline.
type usage struct {
	bin        int
	disk       int16
	start, end scheduler.Time
	d          scheduler.Resources
	space      int64
}

// usages returns the content of a timeline by its definition: of nodes, of accounts and of the caps above a tenant.
func usages(s *scheduler.State, u untilEstimate, now scheduler.Time) (nodes, accounts, caps []usage) {
	add := func(n scheduler.NodeID, disk int16, start, end scheduler.Time, d scheduler.Resources, space int64, tenant, below scheduler.TenantID) {
		disk = min(disk, int16(len(s.Node(n).Disks))-1)
		if disk < 0 {
			d[scheduler.IO], space = 0, 0
		}
		nodes = append(nodes, usage{int(n), disk, start, end, d, space})
		if tenant != scheduler.NoTenant {
			accounts = append(accounts, usage{int(tenant), -1, start, end, d, 0})
		}
		caps = append(caps, usage{int(below), -1, start, end, d, 0})
	}
	for _, n := range s.Nodes() {
		for a := range s.Attempts().On(n.Spec.ID) {
			c, tenant := u.ClaimOf(s, a, now), scheduler.NoTenant
			if c.Charged {
				tenant = a.Tenant
			}
			add(a.Node, a.Disk, now, c.End, c.Occupied.Resources, c.Occupied.Disk, tenant, a.Tenant)
			if a.From != scheduler.NoNode {
				add(a.From, a.FromDisk, now, c.SourceEnd, a.FromOccupied.Resources, a.FromOccupied.Disk, scheduler.NoTenant, scheduler.NoTenant)
			}
		}
	}
	for _, n := range s.Nodes() {
		away := returns(n, now) && !n.Schedulable() // for its first window that is not over, and until that begins
		for _, w := range n.Spec.Windows {
			if away && w.To > now {
				w.From, away = min(w.From, now), false
			}
			add(n.Spec.ID, -1, w.From, w.To, scheduler.Resources{n.Spec.Capacity[scheduler.CPU], n.Spec.Capacity[scheduler.Memory]}, 0, scheduler.NoTenant, scheduler.NoTenant)
			for i, d := range n.Spec.Disks {
				add(n.Spec.ID, int16(i), w.From, w.To, scheduler.Resources{scheduler.IO: d.IO}, d.Space, scheduler.NoTenant, scheduler.NoTenant)
			}
		}
	}
	for _, r := range s.Reservations().All() {
		if r.Kind == scheduler.ReserveData || r.Kind == scheduler.ReservePreempt {
			continue
		}
		tenant := scheduler.NoTenant
		if u.charge && r.Kind != scheduler.ReserveHead && r.IsOfTask() {
			tenant = s.Job(r.Job).Spec.Tenant
		}
		add(r.Node, r.OnDisk, r.Start, r.End, r.Demand, r.Disk, tenant, tenant)
	}
	return nodes, accounts, caps
}

// freeOf returns the free capacity of a bin at a time.
func freeOf(list []usage, bin int, base []int64, disks []scheduler.Disk, at scheduler.Time) []int64 {
	free := slices.Clone(base)
	for _, d := range disks {
		free = append(free, d.IO, d.Space)
	}
	for _, x := range list {
		if x.bin != bin || at < x.start || at >= x.end {
			continue
		}
		for r := range base {
			free[r] -= x.d[r]
		}
		if x.disk >= 0 {
			free[len(base)+2*int(x.disk)] -= x.d[scheduler.IO]
			free[len(base)+2*int(x.disk)+1] -= x.space
		}
	}
	return free
}

// checkTimeline compares a State's timeline with its definition at every time at which
// something changes.
func checkTimeline(t *testing.T, s *scheduler.State, u untilEstimate, now scheduler.Time) {
	t.Helper()
	checkPlannedAt(t, s)
	index := s.Timeline(u, now)
	nodes, accounts, caps := usages(s, u, now)
	times := []scheduler.Time{now}
	for _, x := range nodes {
		times = append(times, max(now, x.start), max(now, x.end))
	}
	for _, at := range times {
		if at == scheduler.Never {
			continue
		}
		for i, n := range s.Nodes() {
			c := n.Spec.Capacity
			want := freeOf(nodes, i, []int64{c[scheduler.CPU], c[scheduler.Memory]}, n.Spec.Disks, at)
			if got := index.Nodes.Free(int32(i), at, nil); !slices.Equal(got, want) {
				t.Fatalf("node %d at %d: the timeline has %v free, want %v", i, at, got, want)
			}
			if open := n.Schedulable() || returns(n, now); index.Nodes.Closed(int32(i)) == open {
				t.Fatalf("node %d: closed is %v", i, open)
			}
		}
		for i := range s.Tenants() {
			if !u.charge {
				break
			}
			want := freeOf(accounts, i, make([]int64, scheduler.NumResources), nil, at)
			if got := index.Accounts.Free(int32(i), at, nil); !slices.Equal(got, want) {
				t.Fatalf("tenant %d at %d: the timeline has %v free, want %v", i, at, got, want)
			}
		}
		checkCaps(t, s, u, index, caps, at)
	}
	overran := false
	for _, n := range s.Nodes() {
		for a := range s.Attempts().On(n.Spec.ID) {
			overran = overran || u.ClaimOf(s, a, now).Overran
		}
	}
	if index.HasOverrun() != overran {
		t.Fatalf("an attempt is past its end: %v", overran)
	}
}

// checkCaps compares the free capacity below each cap in a State's timeline at a time with its definition.
func checkCaps(t *testing.T, s *scheduler.State, u untilEstimate, index *scheduler.Timeline, list []usage, at scheduler.Time) {
	t.Helper()
	next := int32(0)
	for _, tenant := range s.Tenants() {
		capacity := tenant.Spec.Caps.Total
		if !u.charge || capacity == (scheduler.Limit{}) {
			continue
		}
		var below []usage
		for _, x := range list {
			if x.bin >= 0 && s.TenantTree().IsBelow(scheduler.TenantID(x.bin), tenant.Spec.ID) {
				x.bin = 0
				below = append(below, x)
			}
		}
		want, got := freeOf(below, 0, capacity[:], nil, at), index.Caps.Free(next, at, nil)
		for r, limit := range capacity {
			if limit > 0 && got[r] != want[r] {
				t.Fatalf("cap of tenant %d at %d: the timeline has %v free, want %v", tenant.Spec.ID, at, got, want)
			}
		}
		if !slices.Contains(index.CapsOf(tenant.Spec.ID), next) || index.CapTenants()[next] != tenant.Spec.ID {
			t.Fatalf("tenant %d takes from the caps %v, its own is %d", tenant.Spec.ID, index.CapsOf(tenant.Spec.ID), next)
		}
		next++
	}
}

// checkPlannedAt compares where each task is planned with a search of all reservations.
func checkPlannedAt(t *testing.T, s *scheduler.State) {
	t.Helper()
	want := map[scheduler.TaskID]*scheduler.Reservation{}
	for _, r := range s.Reservations().All() { // by id: the highest stays
		if r.IsPlanOfTask() {
			want[scheduler.TaskID{Job: r.Job, Stage: r.Stage, Index: r.Task}] = r
		}
	}
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			for i := range g.Spec.Tasks {
				if got := g.PlannedAt(i); got != want[g.Task(i)] {
					t.Fatalf("task %v is planned at %+v, want %+v", g.Task(i), got, want[g.Task(i)])
				}
			}
		}
	}
}

// reserveSome reserves for tasks and jobs, moves reservations and drops some.
func reserveSome(c *schedtest.Chaos) {
	for j := range c.State.Jobs() {
		if c.R.IntN(2) == 0 {
			continue
		}
		g := j.Stages[0]
		r := scheduler.Reservation{ID: scheduler.ReservationID(100 + c.R.IntN(12)), Kind: []scheduler.ReservationKind{scheduler.ReserveProject, scheduler.ReserveDeadline, scheduler.ReserveHead}[c.R.IntN(3)],
			Job: j.Spec.ID, Task: int32(c.R.IntN(int(g.Spec.Tasks)+1)) - 1, Node: scheduler.NodeID(c.R.IntN(len(c.State.Nodes()))), Demand: g.Spec.Demand, Disk: g.Spec.Disk,
			OnDisk: int16(c.R.IntN(3) - 1), Start: c.Now.Add(time.Duration(c.R.IntN(20)-3) * time.Second)}
		r.End = r.Start.Add(time.Duration(1+c.R.IntN(30)) * time.Second)
		act := scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}
		if c.R.IntN(4) == 0 {
			act.Kind = scheduler.ActUnreserve
		}
		_ = c.State.Apply(&act, c.Now) // many are refused: there is no such reservation, or it is malformed
	}
}

// Through random events, actions, reservations and tries that are kept or rolled back, the State's
// timeline equals its definition.
func TestTimelineIsWhatAttemptsAndReservationsTake(t *testing.T) {
	for range 20 {
		c := schedtest.NewChaos(t, seed.New(t))
		u := untilEstimate{charge: c.R.IntN(2) == 0}
		for range 120 {
			c.Step()
			c.Advance(time.Duration(c.R.IntN(1500)) * time.Millisecond)
			if c.R.IntN(5) == 0 {
				c.OrderWindows()
			}
			c.State.SetTime(c.Now)
			if c.R.IntN(3) == 0 {
				checkTimeline(t, c.State, u, c.Now)
			}
			mark := c.State.Journal().Mark()
			for _, act := range c.Actions(4) {
				_ = c.State.Apply(&act, c.Now)
			}
			reserveSome(c)
			if c.R.IntN(4) == 0 {
				checkTimeline(t, c.State, u, c.Now)
			}
			if c.R.IntN(2) == 0 {
				c.State.Journal().Keep(mark)
			} else {
				c.State.Journal().Rollback(mark)
			}
			if c.R.IntN(2) == 0 {
				checkTimeline(t, c.State, u, c.Now)
			}
		}
	}
}

// A node on which something was released is named, also if the timeline never knew of it.
func TestFreedSinceNamesNodesWithReleases(t *testing.T) {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
	id := w.Submit("a", 2, schedtest.R(1, 1, 0))
	index := w.State.Timeline(untilEstimate{}, w.Now)
	clock := index.FreeClock()
	attempt := w.Place(scheduler.TaskID{Job: id}, 1)
	w.Start()
	w.End(attempt, scheduler.OutcomeSucceeded)
	index = w.State.Timeline(untilEstimate{}, w.Now)
	var freed []scheduler.NodeID
	index.FreedSince(clock, func(n scheduler.NodeID) { freed = append(freed, n) })
	if !slices.Equal(freed, []scheduler.NodeID{1}) {
		t.Errorf("freed: %v, want node 1", freed)
	}
	index.FreedSince(index.FreeClock(), func(n scheduler.NodeID) { t.Errorf("node %d was freed since now", n) })
	if index.NextChange() != scheduler.Never {
		t.Errorf("the next change is at %d", index.NextChange())
	}
}
