package schedtest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Invariants recomputes the use of nodes, tenants, jobs and stages from every attempt, the
// slow and obvious way, and returns an error if the State's counts differ.
func Invariants(s *scheduler.State) error {
	sum := newSums(s)
	for j := range s.Jobs() {
		if err := sum.addJob(s, j); err != nil {
			return err
		}
	}
	if got := s.Attempts().Live(); got != sum.live {
		return fmt.Errorf("live is %d, counted %d", got, sum.live)
	}
	if got := s.Queue().Bounded(); got != sum.bounded {
		return fmt.Errorf("%d jobs with a bound, counted %d", got, sum.bounded)
	}
	if err := sum.checkSuspendedOrder(s); err != nil {
		return err
	}
	if err := checkReservationOrder(s); err != nil {
		return err
	}
	return sum.compare(s)
}

// sums is the totals over the attempts of a State.
type sums struct {
	free      []scheduler.Resources
	disks     [][]scheduler.DiskUse
	swap      []int64
	used, own []scheduler.Resources
	releasing []scheduler.Resources // by tenant, of its subtree
	running   []int32
	high      []int32 // jobs of high priority with ready work
	live      int
	bounded   int // jobs with a bound of their own
	resumable int // in phase AttemptSuspended and not parked
	slots     map[int32]scheduler.AttemptID
}

func newSums(s *scheduler.State) *sums {
	u := &sums{used: make([]scheduler.Resources, len(s.Tenants())), own: make([]scheduler.Resources, len(s.Tenants())),
		releasing: make([]scheduler.Resources, len(s.Tenants())), running: make([]int32, len(s.Tenants())), high: make([]int32, len(s.Tenants())), slots: map[int32]scheduler.AttemptID{}}
	for _, n := range s.Nodes() {
		u.free = append(u.free, n.Spec.Capacity)
		u.swap = append(u.swap, n.Spec.Swap)
		var d []scheduler.DiskUse
		for _, k := range n.Spec.Disks {
			d = append(d, scheduler.DiskUse{FreeIO: k.IO, FreeSpace: k.Space})
		}
		u.disks = append(u.disks, d)
	}
	return u
}

// checkSuspendedOrder checks that Attempts.Suspended yields exactly the resumable attempts, in
// order of suspension.
func (u *sums) checkSuspendedOrder(s *scheduler.State) error {
	n, last := 0, scheduler.Time(0)
	for a := range s.Attempts().Suspended() {
		if a.Phase != scheduler.AttemptSuspended || a.SuspendedAt < last {
			return fmt.Errorf("attempt %s is %v, suspended at %d, and listed behind one suspended at %d", a.ID, a.Phase, a.SuspendedAt, last)
		}
		n, last = n+1, a.SuspendedAt
	}
	if n != u.resumable {
		return fmt.Errorf("%d listed as suspended, counted %d", n, u.resumable)
	}
	return nil
}

// checkReservationOrder checks that each reservation is in the list of its node and in that of
// the guarantees or of the unguaranteed, in order of (Start, ID).
func checkReservationOrder(s *scheduler.State) error {
	byStart := func(a, b *scheduler.Reservation) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ID, b.ID))
	}
	same := func(what string, got []*scheduler.Reservation, in func(*scheduler.Reservation) bool) error {
		var want []*scheduler.Reservation
		for _, r := range s.Reservations().All() {
			if in(r) {
				want = append(want, r)
			}
		}
		slices.SortFunc(want, byStart)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: the list of %d reservations differs from the %d expected by start", what, len(got), len(want))
		}
		return nil
	}
	lists := []error{
		same("guarantees", s.Reservations().Guarantees(), func(r *scheduler.Reservation) bool { return r.Kind.IsGuarantee() }),
		same("unguaranteed", s.Reservations().Unguaranteed(), func(r *scheduler.Reservation) bool { return !r.Kind.IsGuarantee() }),
	}
	for _, n := range s.Nodes() {
		others := int32(0)
		for _, r := range s.Reservations().On(n.Spec.ID) {
			if !r.Kind.IsGuarantee() {
				others++
			}
		}
		if others != n.Unguaranteed() {
			return fmt.Errorf("node %q: %d reservations that are no guarantees, counted %d", n.Spec.Name, n.Unguaranteed(), others)
		}
		lists = append(lists, same(n.Spec.Name, s.Reservations().On(n.Spec.ID), func(r *scheduler.Reservation) bool { return r.Node == n.Spec.ID }))
	}
	return errors.Join(lists...)
}

// checkSlot checks that an attempt has a slot number of its own.
func (u *sums) checkSlot(s *scheduler.State, a *scheduler.Attempt) error {
	slot, second := s.Attempts().Slots(a.ID.TaskID)
	if _, taken := u.slots[slot]; taken { // the slot belongs to the task's first attempt
		slot = second
	}
	if other, taken := u.slots[slot]; taken || slot < 0 {
		return fmt.Errorf("attempt %s has slot %d, which is also that of %s", a.ID, slot, other)
	}
	u.slots[slot] = a.ID
	return nil
}

func (u *sums) occupy(n scheduler.NodeID, disk int16, h scheduler.Occupancy) {
	u.free[n] = u.free[n].Sub(h.Resources)
	u.swap[n] -= h.Swap
	if disk >= 0 {
		u.disks[n][disk].FreeIO -= h.Resources[scheduler.IO]
		u.disks[n][disk].FreeSpace -= h.Disk
	}
}

// addJob adds the attempts of a job and compares the job's counts.
func (u *sums) addJob(s *scheduler.State, j *scheduler.Job) error {
	var used scheduler.Resources
	var live, ready int32
	pending := int64(0)
	for _, g := range j.Stages {
		pending += int64(g.Pending)
		var running, suspended int32
		progress := float64(g.Done)
		for a := range s.Attempts().In(g) {
			u.occupy(a.Node, a.Disk, a.Occupied)
			if a.From != scheduler.NoNode {
				u.occupy(a.From, a.FromDisk, a.FromOccupied)
			}
			used = used.Add(a.Occupied.Resources)
			for t := s.Tenant(j.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
				u.releasing[t.Spec.ID] = u.releasing[t.Spec.ID].Add(a.PendingRelease())
			}
			progress += a.Progress
			if a.Level == scheduler.LevelRunning {
				running++
			} else {
				suspended++
			}
			if a.Phase == scheduler.AttemptSuspended && !a.Parked {
				u.resumable++
			}
			if s.Attempt(a.ID) != a || s.StageOf(a) != g {
				return fmt.Errorf("attempt %s is not found by its id", a.ID)
			}
			if err := u.checkSlot(s, a); err != nil {
				return err
			}
			live++
		}
		if err := u.checkStage(s, g, running, suspended); err != nil {
			return err
		}
		if int(g.Index) >= len(j.Begun()) && (running+suspended > 0 || g.CountedUntil() > 0) {
			return fmt.Errorf("stage %s: it had attempts, but is not among the %d that Begun returns", g.ID(), len(j.Begun()))
		}
		if d := g.Progress() - progress; d > 1e-6 || d < -1e-6 {
			return fmt.Errorf("stage %s: progress %v, counted %v", g.ID(), g.Progress(), progress)
		}
		if g.Ready() {
			ready++
		}
		clock, has := s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.WaitSinceState, Job: j.Spec.ID, Stage: g.Index})
		if since, waits := g.WaitingSince(); waits != has || since != clock.At {
			return fmt.Errorf("stage %s: waits %v since %d, its policy state says %v since %d", g.ID(), waits, since, has, clock.At)
		}
	}
	if j.Used != used || j.Live != live || j.Ready != ready || j.Pending != pending {
		return fmt.Errorf("job %d: used %v live %d ready %d pending %d, counted %v %d %d %d", j.Spec.ID, j.Used, j.Live, j.Ready, j.Pending, used, live, ready, pending)
	}
	guarantees := int32(0)
	for _, r := range j.Reservations() {
		if r.Kind.IsGuarantee() {
			guarantees++
		}
	}
	if others := int32(len(j.Reservations())) - guarantees; j.Guarantees != guarantees || j.Unguaranteed() != others {
		return fmt.Errorf("job %d: %d guarantees and %d other reservations, counted %d and %d", j.Spec.ID, j.Guarantees, j.Unguaranteed(), guarantees, others)
	}
	if ready > 0 && j.Spec.Priority == scheduler.PriorityHigh {
		u.high[j.Spec.Tenant]++
	}
	if u.live += int(live); j.Spec.Bound > 0 {
		u.bounded++
	}
	u.own[j.Spec.Tenant] = u.own[j.Spec.Tenant].Add(used)
	for t := j.Spec.Tenant; t != scheduler.NoTenant; t = s.Tenant(t).Spec.Parent {
		u.used[t] = u.used[t].Add(used)
		for _, g := range j.Stages {
			u.running[t] += g.Running
		}
	}
	return nil
}

// checkStage compares the counts of a stage with its tasks and attempts.
func (u *sums) checkStage(s *scheduler.State, g *scheduler.Stage, running, suspended int32) error {
	var pending, done, busy int32
	for i := range g.Spec.Tasks {
		live := false
		for range s.Attempts().Of(g, i) {
			live = true
		}
		if g.IsPending(i) {
			pending++
		}
		if g.IsDone(i) {
			done++
		} else if live {
			busy++
		}
		if g.IsPending(i) && (live || g.IsDone(i)) {
			return fmt.Errorf("task %s is pending, and also live or done", g.Task(i))
		}
	}
	if g.Pending != pending || g.Done != done || g.Running != running || g.Suspended != suspended ||
		pending+done+busy+g.Failed != g.Spec.Tasks {
		return fmt.Errorf("stage %s: pending %d done %d running %d suspended %d failed %d of %d, counted %d %d %d %d, %d busy", g.ID(),
			g.Pending, g.Done, g.Running, g.Suspended, g.Failed, g.Spec.Tasks, pending, done, running, suspended, busy)
	}
	if open := mayStart(g); g.Open != open {
		return fmt.Errorf("stage %s: open is %v, want %v", g.ID(), g.Open, open)
	}
	if g.Ready() != (g.Open && pending > 0 && g.Job.Phase == scheduler.JobActive) {
		return fmt.Errorf("stage %s: ready is %v", g.ID(), g.Ready())
	}
	return nil
}

// mayStart reports whether enough tasks of the stages before a stage are done: all, or with a slow
// start a part of the maps while none of these waits for capacity or is suspended.
func mayStart(g *scheduler.Stage) bool {
	for _, i := range g.Spec.After {
		before := g.Job.Stages[i]
		need := float64(before.Spec.Tasks)
		s := &g.Job.Spec
		early := g.Spec.SlowStart > 0 && g.Spec.Kind == scheduler.KindReduce && before.Spec.Kind == scheduler.KindMap && s.Bound == 0 && s.Deadline == 0 && s.Project == 0
		if early && before.Pending == 0 && before.Suspended == 0 {
			need *= g.Spec.SlowStart
		}
		if float64(before.Done) < need || before.Spec.Tasks == 0 && !before.Open {
			return false
		}
	}
	return true
}

// compare compares the sums with the State's nodes and tenants.
func (u *sums) compare(s *scheduler.State) error {
	var total scheduler.Resources
	schedulable := 0
	for i, n := range s.Nodes() {
		// Attempts whose release is in progress still occupy everything.
		if n.Free != u.free[i] || n.SwapFree != u.swap[i] {
			return fmt.Errorf("node %q: free %v swap %d, counted %v %d", n.Spec.Name, n.Free, n.SwapFree, u.free[i], u.swap[i])
		}
		for k, d := range n.Disks {
			if d != u.disks[i][k] {
				return fmt.Errorf("node %q disk %d: free %+v, counted %+v", n.Spec.Name, k, d, u.disks[i][k])
			}
		}
		if !n.Spec.Down {
			total = total.Add(n.Spec.Capacity)
		}
		if n.Schedulable() {
			schedulable++
		}
	}
	if s.Cluster().Total() != total || s.Cluster().SchedulableNodes() != schedulable {
		return fmt.Errorf("total %v on %d nodes, counted %v %d", s.Cluster().Total(), s.Cluster().SchedulableNodes(), total, schedulable)
	}
	for i, t := range s.Tenants() {
		if t.Used != u.used[i] || t.Own != u.own[i] || t.Running != u.running[i] {
			return fmt.Errorf("tenant %q: used %v own %v running %d, counted %v %v %d", t.Spec.Name, t.Used, t.Own, t.Running,
				u.used[i], u.own[i], u.running[i])
		}
		if t.Releasing != u.releasing[i] {
			return fmt.Errorf("tenant %q: releases %v, counted %v", t.Spec.Name, t.Releasing, u.releasing[i])
		}
		if t.ReadyHigh != u.high[i] {
			return fmt.Errorf("tenant %q: %d jobs of high priority ready, counted %d", t.Spec.Name, t.ReadyHigh, u.high[i])
		}
	}
	return nil
}
