package obstacle

import (
	"math"
	"math/bits"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// fitsWithout reports whether a task fits on a node without the items of a mask. It
// is the slow obvious version.
func fitsWithout(r *room, mask uint) bool {
	free, disks := r.free, slices.Clone(r.disks)
	for i, it := range r.items {
		if mask&(1<<i) == 0 {
			continue
		}
		for k := range free {
			free[k] += it.frees[k]
		}
		if it.disk >= 0 {
			disks[it.disk].FreeIO += it.frees[scheduler.IO]
			disks[it.disk].FreeSpace += it.space
		}
	}
	if free[scheduler.CPU] < r.need[scheduler.CPU] || free[scheduler.Memory] < r.need[scheduler.Memory] {
		return false
	}
	if len(disks) == 0 {
		return r.need[scheduler.IO] == 0 && r.space == 0
	}
	return slices.ContainsFunc(disks, func(d scheduler.DiskUse) bool { return d.FreeIO >= r.need[scheduler.IO] && d.FreeSpace >= r.space })
}

// On random clusters the set that is found clears the node, no member of it can be
// left out, and one is found wherever clearing everything would do.
func TestNearestClearsTheNode(t *testing.T) {
	withAttempts, withReservations := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.Step()
			fill(w)
		}
		now := w.Now
		for j := range w.State.Jobs() {
			for _, g := range j.Stages {
				possible, least := leastToClear(w.State, g, now)
				before := schedtest.Bytes(w.State)
				set, ok := Nearest(w.State, g, now, math.MaxInt)
				if !slices.Equal(before, schedtest.Bytes(w.State)) {
					t.Fatal("the state has changed")
				}
				if possible && !ok {
					t.Fatalf("nothing found for %s, although %d suffice", g.ID(), least)
				}
				if ok {
					checkSet(t, w.State, g, now, set, least)
					withAttempts += min(len(set.Attempts), 1)
					withReservations += min(len(set.Reservations), 1)
				}
			}
		}
	})
	if withAttempts == 0 || withReservations == 0 {
		t.Errorf("%d sets have attempts, %d reservations: the clusters are too empty", withAttempts, withReservations)
	}
}

// fill applies random actions, makes a random job avoid a node and adds a reservation that takes capacity.
func fill(w *schedtest.Chaos) {
	for _, a := range w.Actions(w.R.IntN(6)) {
		_ = w.State.Apply(&a, w.Now) // some do not fit
	}
	for j := range w.State.Jobs() {
		node := scheduler.NodeID(w.R.IntN(len(w.State.Nodes())))
		switch w.R.IntN(8) {
		case 0:
			_ = w.State.Events().SetAvoided(j.Spec.ID, []scheduler.NodeID{node})
		case 1:
			r := scheduler.Reservation{ID: scheduler.ReservationID(10 + w.R.IntN(9)), Kind: scheduler.ReserveDeadline, Job: j.Spec.ID, Stage: -1, Task: -1,
				Node: node, Demand: schedtest.R(float64(w.R.IntN(4)), float64(w.R.IntN(4)), float64(w.R.IntN(40))), Disk: int64(w.R.IntN(9)) * schedtest.GiB,
				OnDisk: int16(w.R.IntN(4) - 1), Start: w.Now.Add(time.Duration(w.R.IntN(4)-2) * time.Second), End: w.Now.Add(time.Minute)}
			_ = w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now)
		}
	}
}

// leastToClear reports whether clearing some node lets a task of the stage start, and returns how many items are the
// fewest. It is the slow obvious version, and leaves out nodes of many items.
func leastToClear(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) (possible bool, least int) {
	least = math.MaxInt
	for _, n := range s.Nodes() {
		r := newRoom(s, g, n, now)
		if !n.Schedulable() || s.Cluster().Avoids(g, n.Spec.ID) || len(r.items) > maxItems {
			continue
		}
		for mask := range uint(1) << len(r.items) {
			if fitsWithout(r, mask) {
				possible, least = true, min(least, bits.OnesCount(mask))
			}
		}
	}
	return possible, least
}

// maxItems is the number of attempts and reservations on a node up to which every set is tried.
const maxItems = 8

func checkSet(t *rapid.T, s *scheduler.State, g *scheduler.Stage, now scheduler.Time, set Set, least int) {
	r, mask := newRoom(s, g, s.Node(set.Node), now), uint(0)
	for i, it := range r.items {
		if it.reservation != 0 && slices.Contains(set.Reservations, it.reservation) || it.reservation == 0 && slices.Contains(set.Attempts, it.attempt) {
			mask |= 1 << i
		}
	}
	if bits.OnesCount(mask) != set.size() || !fitsWithout(r, mask) || set.size() < least && len(r.items) <= maxItems {
		t.Fatalf("%s: %+v does not clear node %d (least %d)", g.ID(), set, set.Node, least)
	}
	for i := range r.items {
		if mask&(1<<i) != 0 && fitsWithout(r, mask&^(1<<i)) {
			t.Fatalf("%s: %+v has a member too many", g.ID(), set)
		}
	}
}

// A task that needs a whole node is stopped by the work on the node with least on it.
func TestNearest(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	small := w.Submit("a", 3, schedtest.R(1, 1, 1))
	large := w.Submit("a", 1, schedtest.R(4, 4, 1))
	for i, n := range []scheduler.NodeID{0, 0, 1} {
		w.Place(scheduler.TaskID{Job: small, Index: int32(i)}, n)
	}
	w.Start()
	g := w.State.Job(large).Stages[0]
	set, ok := Nearest(w.State, g, w.Now, 100)
	if !ok || set.Node != 1 || len(set.Attempts) != 1 || set.Attempts[0].Index != 2 || len(set.Reservations) != 0 {
		t.Errorf("%+v %v", set, ok)
	}
	if _, ok := Nearest(w.State, g, w.Now, 1); ok {
		t.Error("the bound of attempts does not hold")
	}
	free := w.Submit("a", 1, schedtest.R(1, 1, 1))
	if set, ok := Nearest(w.State, w.State.Job(free).Stages[0], w.Now, 100); !ok || set.size() != 0 {
		t.Errorf("it fits: %+v %v", set, ok)
	}
	huge := w.Submit("a", 1, schedtest.R(5, 1, 1))
	if set, ok := Nearest(w.State, w.State.Job(huge).Stages[0], w.Now, 100); ok {
		t.Errorf("no node is large enough: %+v", set)
	}
}

// A task that needs the I/O of one disk counts its lack on each disk separately: here the disk that
// lacks least can never have enough, and two tasks must leave the other.
func TestEachDiskIsClearedByItself(t *testing.T) {
	w := schedtest.New(t).AddTenants("a")
	spec := schedtest.NodeSpec(0, "/r1", schedtest.R(8, 8, 140))
	spec.Disks = []scheduler.Disk{{Name: "sda", IO: 40 * schedtest.MiB}, {Name: "sdb", IO: 100 * schedtest.MiB}}
	if err := w.State.Events().AddNode(spec); err != nil {
		t.Fatal(err)
	}
	g := w.State.Stage(scheduler.StageID{Job: w.Submit("a", 3, schedtest.R(1, 1, 30))})
	for i := range g.Spec.Tasks {
		a := w.State.Attempts().PlaceAction(g, i, 0, 1)
		if err := w.State.Apply(&a, w.Now); err != nil {
			t.Fatal(err)
		}
	}
	large := w.Submit("a", 1, schedtest.R(1, 1, 50))
	set, ok := Nearest(w.State, w.State.Job(large).Stages[0], w.Now, 100)
	if !ok || len(set.Attempts) != 2 {
		t.Errorf("%+v %v, want two of the three tasks", set, ok)
	}
}

// A node that the job avoids has room, and does not count.
func TestAvoidedNodesAreNoWayOut(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	in := w.Submit("a", 1, schedtest.R(4, 1, 1))
	w.Place(scheduler.TaskID{Job: in}, 1)
	g := w.State.Job(w.Submit("a", 1, schedtest.R(2, 1, 1))).Stages[0]
	if err := w.State.Events().SetAvoided(g.Job.Spec.ID, []scheduler.NodeID{0}); err != nil {
		t.Fatal(err)
	}
	set, ok := Nearest(w.State, g, w.Now, 100)
	if !ok || len(set.Attempts) != 1 || set.Attempts[0].Job != in {
		t.Errorf("what has to give way is %+v, %v; want the task on the other node", set, ok)
	}
}
