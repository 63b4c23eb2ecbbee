package threedsf

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// After any events and decisions the cache of jobs equals a new one, and the survey of guarantees
// finds the same in both.
func TestJobCacheEqualsNewOne(t *testing.T) {
	requests, guarantees, refused := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := &projectWorld{Chaos: schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))}
		p := New(fullConfig())
		v := p.cycle.view
		v.s = w.State
		warm := jobCache{v: &v}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			for range 1 + w.R.IntN(3) {
				w.step()
			}
			if w.R.IntN(2) == 0 {
				w.decide(p, []int{2, 5, 1000}[w.R.IntN(3)])
			}
			v.now = w.Now
			warm.sync()
			cold := jobCache{v: &v}
			cold.sync()
			compareCaches(t, &warm, &cold)
			for i := range cold.jobs {
				switch x := &cold.jobs[i]; {
				case x.status == statusRequested:
					requests++
				case x.status == statusGuaranteed:
					guarantees++
				case v.wasRefused(x.job):
					refused++
				}
			}
		}
	})
	t.Logf("compared %d requests, %d guarantees, %d refused jobs", requests, guarantees, refused)
	if !t.Failed() && min(requests, guarantees, refused) < 20 {
		t.Error("too few jobs of a kind for a meaningful test")
	}
}

func compareCaches(t *rapid.T, warm, cold *jobCache) {
	if len(warm.jobs) != len(cold.jobs) || len(warm.index) != len(warm.jobs) {
		t.Fatalf("%d jobs are cached and %d indexed, want %d", len(warm.jobs), len(warm.index), len(cold.jobs))
	}
	for i := range cold.jobs {
		want := &cold.jobs[i]
		id := want.job.Spec.ID
		if got := &warm.jobs[warm.index[id]]; *got != *want {
			t.Fatalf("at %d: of job %d is cached\n%+v, want\n%+v", cold.v.now, id, *got, *want)
		}
	}
	if warm.fingerprint() != cold.fingerprint() {
		t.Fatalf("at %d: fingerprint %x, want %x", cold.v.now, warm.fingerprint(), cold.fingerprint())
	}
}

// The cached values of one job with a guarantee, by its tasks and reservations. Its tasks have a
// bound of 30 s, the margin is 2 s, its deadline is at 101 s; now is 1 s.
func TestTimesCachedOfAGuaranteedJob(t *testing.T) {
	const never = scheduler.Never
	second := func(s int) scheduler.Time { return scheduler.Time(s) * scheduler.Time(time.Second) }
	for name, x := range map[string]struct {
		tasks    int32
		change   func(w *schedtest.World, g *scheduler.Stage)
		reserved []scheduler.Reservation // Task, Start and End; of 1 core on node 0
		at       scheduler.Time
		want     cachedJob
	}{
		"nothing is planned": {1, nil, nil, second(1),
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: never, retryDeadline: second(71) + 1}},
		"planned": {1, nil, []scheduler.Reservation{{Start: second(10), End: second(42)}}, second(1), // it may start 2 s late
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: second(12) + 1, retryDeadline: never}},
		"planned for less than bound and margin": {1, nil, []scheduler.Reservation{{Start: second(10), End: second(41)}}, second(1), // 1 s late
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: second(11) + 1, retryDeadline: never}},
		"late": {1, nil, []scheduler.Reservation{{Start: second(10), End: second(42)}}, second(12) + 1,
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: never, retryDeadline: never, needsReplan: true}},
		"just in time": {1, nil, []scheduler.Reservation{{Start: second(10), End: second(42)}}, second(12),
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: second(12) + 1, retryDeadline: never}},
		"one of two is planned": {2, nil, []scheduler.Reservation{{Start: second(10), End: second(42)}}, second(1),
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: second(12) + 1, retryDeadline: second(71) + 1}},
		"its task runs": {1, func(w *schedtest.World, g *scheduler.Stage) { w.Place(g.Task(0), 0); w.Start() }, nil, second(1),
			cachedJob{status: statusGuaranteed, overrunAt: second(33), startDeadline: never, retryDeadline: never}},
		"its task runs and is planned": {1, func(w *schedtest.World, g *scheduler.Stage) { w.Place(g.Task(0), 0); w.Start() },
			[]scheduler.Reservation{{Start: second(10), End: second(42)}}, second(1),
			cachedJob{status: statusGuaranteed, overrunAt: second(33), startDeadline: second(12) + 1, retryDeadline: never, overReserved: true, reservedInVain: 1}},
		"its node is lost": {1, func(w *schedtest.World, _ *scheduler.Stage) {
			if err := w.State.Events().NodeLost(0, w.Now); err != nil {
				t.Fatal(err)
			}
		}, []scheduler.Reservation{{Start: second(10), End: second(42)}}, second(1),
			cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: never, retryDeadline: never, needsReplan: true}},
		"violated": {1, func(w *schedtest.World, g *scheduler.Stage) {
			state := scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.ViolatedState, Job: g.Job.Spec.ID, Slot: 1}, At: w.Now}
			if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{state}); err != nil {
				t.Fatal(err)
			}
		}, nil, second(1), cachedJob{status: statusGuaranteed, overrunAt: never, startDeadline: never, retryDeadline: never}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 10)).AddTenants("a")
			j := w.State.Job(w.Submit("a", x.tasks, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
				j.Bound, j.Deadline = 30*time.Second, second(101)
			}))
			accepted := scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.AcceptedState, Job: j.Spec.ID}, Value: int64(j.Spec.Deadline), At: second(50)}
			if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{accepted}); err != nil {
				t.Fatal(err)
			}
			for i, r := range x.reserved {
				r.ID, r.Kind, r.Job, r.Task, r.Demand, r.OnDisk, r.Latest = scheduler.ReservationID(i+1), scheduler.ReserveDeadline, j.Spec.ID, int32(i), schedtest.R(1, 1, 0), -1, second(60)
				reserveFor(t, w, r)
			}
			if x.change != nil {
				x.change(w, j.Stages[0])
			}
			cfg := fullConfig()
			v := view{cfg: &cfg, assumptions: assumptions{deadlines: true}, s: w.State, now: x.at}
			got := (&jobCache{v: &v}).inspect(j)
			if got.fingerprint == 0 {
				t.Error("a job with a guarantee has no fingerprint")
			}
			x.want.job, x.want.hasDeadline, x.want.accepted, x.want.fingerprint = j, true, second(50), got.fingerprint
			if got != x.want {
				t.Errorf("cached\n%+v, want\n%+v", got, x.want)
			}
		})
	}
}

// The fingerprint of a job changes with the work done and with the waiting tasks that have no place, and with nothing else:
// a compression starts when it does.
func TestFingerprintFollowsWorkDone(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 10)).AddTenants("a")
	j := w.State.Job(w.Submit("a", 3, schedtest.R(1, 1, 0)))
	print := func() uint64 {
		return jobFingerprint(j, j.Stages[0].Pending)
	}
	reserve := func(id scheduler.ReservationID, task int32) {
		reserveFor(t, w, scheduler.Reservation{ID: id, Kind: scheduler.ReserveDeadline, Job: j.Spec.ID, Task: task, Demand: schedtest.R(1, 1, 0), OnDisk: -1,
			Start: w.Now, End: w.Now.Add(time.Minute), Latest: w.Now.Add(time.Minute)})
	}
	seen := map[uint64]string{}
	step := func(what string, changes bool, do func()) {
		before := print()
		seen[before] = what
		if do(); (print() != before) != changes {
			t.Errorf("%s: the fingerprint changes: %v, want %v", what, print() != before, changes)
		}
		if _, known := seen[print()]; changes && known {
			t.Errorf("%s: the fingerprint is that of an earlier state", what)
		}
	}
	step("a reservation", true, func() { reserve(1, 0) })
	step("two more", true, func() { reserve(2, 1); reserve(3, 2) })
	var a *scheduler.Attempt
	step("a reserved task starts, and its reservation is dropped", false, func() {
		a = w.Place(scheduler.TaskID{Job: j.Spec.ID}, 0)
		if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: 1}}, w.Now); err != nil {
			t.Fatal(err)
		}
	})
	step("it runs", false, func() { w.Start() })
	step("time passes", false, func() { w.Advance(time.Second) })
	step("it ends", true, func() { w.End(a, scheduler.OutcomeSucceeded) })
}
