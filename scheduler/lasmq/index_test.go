package lasmq

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// naiveQueue is a queue as one would write it down: all jobs of a group and level.
type naiveQueue struct {
	ready   []scheduler.JobID // in order
	running float64
}

// naiveQueues inspects all jobs of the State. It returns the queues of a group, and when the first
// job of any group is demoted, found by bisection. With onlyContended, groups with fewer than two
// jobs with ready work do not count.
func naiveQueues(c *Config, s *scheduler.State, now scheduler.Time, group int, groupOf func(*scheduler.Job) int, onlyContended bool) (_ []naiveQueue, _ scheduler.Time, contended bool) {
	ready := map[int]int{}
	for j := range s.Jobs() {
		if j.Ready > 0 {
			ready[groupOf(j)]++
		}
	}
	queues, demotion := make([]naiveQueue, c.Queues), scheduler.Never
	var jobs []*scheduler.Job
	for j := range s.Jobs() {
		jobs = append(jobs, j)
	}
	slices.SortStableFunc(jobs, func(a, b *scheduler.Job) int {
		return cmp.Compare(c.measure(a).remaining, c.measure(b).remaining)
	})
	for _, j := range jobs {
		if groupOf(j) < 0 || onlyContended && ready[groupOf(j)] < 2 {
			continue
		}
		n, _ := s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID})
		level := c.queueFor(int(n.Value), c.Service(j, now))
		if later := now + 1<<50; c.queueFor(level, c.Service(j, later)) > level {
			low, high := now, later
			for high-low > 1 {
				if mid := low + (high-low)/2; c.queueFor(level, c.Service(j, mid)) > level {
					high = mid
				} else {
					low = mid
				}
			}
			demotion = min(demotion, high)
		}
		if groupOf(j) != group {
			continue
		}
		q := &queues[level-1]
		if q.running += c.RunningContainers(j); j.Ready > 0 {
			q.ready = append(q.ready, j.Spec.ID)
		}
	}
	return queues, demotion, !onlyContended || ready[group] > 1
}

// In any contended group and after any events, the index equals an inspection of all jobs. It has
// nothing to record of the other groups.
func TestIndexFollowsTheState(t *testing.T) {
	demoted := 0
	rapid.Check(t, func(t *rapid.T) {
		c := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		groupOf := func(j *scheduler.Job) int { return int(j.Spec.ID%3) - 1 }
		cfg := testConfig(func(c *Config) { c.Queues, c.First, c.Step = 6, 3, 2 })
		x := NewIndex(cfg, false, groupOf, noAccount)
		x.OnlyContended = rapid.Bool().Draw(t, "only contended")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			for range 1 + c.R.IntN(4) {
				c.Step()
				for _, a := range c.Actions(c.R.IntN(3)) {
					_ = c.State.Apply(&a, c.Now)
				}
			}
			x.Sync(c.State, c.Now, 2)
			for group := range 2 {
				want, demotion, contended := naiveQueues(&cfg, c.State, c.Now, group, groupOf, x.OnlyContended)
				if x.Contended(group) != contended {
					t.Fatalf("group %d: contended %v, want %v", group, !contended, contended)
				}
				if got := x.Demotion(); got.Sub(demotion).Abs() > 100 && demotion < c.Now+1<<49 {
					t.Fatalf("the next demotion is at %v, want %v", got, demotion)
				}
				q := x.Queues(group)
				q.Begin(c.Now)
				if !contended {
					x.eachUnrecorded(group, func(j *scheduler.Job, _ int) {
						t.Fatalf("group %d is not contended: the queue of job %d is to be recorded", group, j.Spec.ID)
					})
					q.eachAccount(c.Now, func(i int, _ account, keep bool) {
						if keep {
							t.Fatalf("group %d is not contended: the account of queue %d is to be kept", group, i)
						}
					})
					continue
				}
				for i := range want {
					if i > 0 && want[i].running > 0 {
						demoted++
					}
					var got []scheduler.JobID
					for p := (position{}); q.lists[i].get(p) != nil; p = q.lists[i].after(p) {
						got = append(got, q.lists[i].get(p).id)
					}
					if !slices.Equal(got, want[i].ready) || roundToThousandths(q.total[i].float()) != roundToThousandths(want[i].running) {
						t.Fatalf("group %d queue %d: jobs %v on %v containers, want %v on %v", group, i+1, got, q.total[i].float(), want[i].ready, want[i].running)
					}
				}
			}
			record(t, x, c.State, c.Now)
		}
	})
	if demoted == 0 {
		t.Error("no job was demoted while it ran: the test shows nothing")
	}
}

// record records the queues of some jobs, as a policy does.
func record(t *rapid.T, x *Index, s *scheduler.State, now scheduler.Time) {
	var states []scheduler.PolicyState
	for group := range 2 {
		x.eachUnrecorded(group, func(j *scheduler.Job, level int) {
			if rapid.Bool().Draw(t, "recorded") {
				states = append(states, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(level), At: now})
			}
		})
	}
	if err := s.PolicyStates().Apply(states); err != nil {
		t.Fatal(err)
	}
}

// A list is sorted and complete after any insertions and removals, across chunks.
func TestJobListIsSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l jobList
		var want []jobKey
		for i := range rapid.IntRange(1, 3*maxChunk).Draw(t, "changes") {
			if k := rapid.IntRange(0, 4).Draw(t, "change"); k == 0 && len(want) > 0 {
				at := rapid.IntRange(0, len(want)-1).Draw(t, "removed")
				l.remove(want[at])
				want = slices.Delete(want, at, at+1)
				continue
			}
			k := jobKey{order: float64(rapid.IntRange(0, 9).Draw(t, "order")), id: scheduler.JobID(i + 1)}
			l.insert(listedJob{jobKey: k})
			at, _ := slices.BinarySearchFunc(want, k, jobKey.compare)
			want = slices.Insert(want, at, k)
		}
		var got []jobKey
		for p := (position{}); l.get(p) != nil; p = l.after(p) {
			got = append(got, l.get(p).jobKey)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the list holds %d entries in another order than the %d inserted", len(got), len(want))
		}
	})
}

// A streak is as long as placing one task after another finds.
func TestStreakIsWhatPlacingOneByOneDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.New(t).AddNodes(1, schedtest.R(1000, 1000, 1000)).AddTenants("a")
		cfg := testConfig(func(c *Config) { c.Queues, c.Decay = 3, rapid.SampledFrom([]float64{1, 0.5, 0.1}).Draw(t, "decay") })
		accounts := map[int]account{}
		x := NewIndex(cfg, false, oneGroup, noAccount)
		x.account = func(_, i int) (account, bool) { a, ok := accounts[i]; return a, ok }
		var states []scheduler.PolicyState
		for i := range 3 {
			if rapid.Bool().Draw(t, "backlogged") {
				id := w.Submit("a", 60, schedtest.R(1, 2, 1))
				states = append(states, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: id}, Value: int64(i + 1), At: w.Now})
				accounts[i+1] = account{deficit: rapid.Float64Range(-500, 500).Draw(t, "deficit"), at: w.Now}
			}
		}
		if err := w.State.PolicyStates().Apply(states); err != nil {
			t.Fatal(err)
		}
		x.Sync(w.State, w.Now, 1)
		q := x.Queues(0)
		q.Begin(w.Now)
		limit := rapid.Int32Range(1, 50).Draw(t, "limit")
		first, ok := q.Next(false)
		if !ok {
			return
		}
		got, want := q.Streak(schedtest.R(1, 2, 1), limit), int32(0)
		for next := first; want < limit && next.Job == first.Job; next, _ = q.Next(false) {
			q.RecordPlaced(schedtest.R(1, 2, 1), 1)
			want++
		}
		if got != want {
			t.Fatalf("a streak of %d tasks, want %d", got, want)
		}
	})
}

// When very many jobs are due to be demoted at once, all are in the next queue at once, and are recorded
// in order of submission, some in each decision.
func TestManyDemotionsAtOnce(t *testing.T) {
	const jobs = 2*maxUnrecorded + 500
	w := schedtest.New(t).AddNodes(jobs/4, schedtest.R(4, 16, 100)).AddTenants("a")
	for range jobs {
		w.Submit("a", 2, schedtest.R(1, 1, 0))
	}
	i := 0
	for j := range w.State.Jobs() {
		if err := w.State.Apply(new(w.State.Attempts().PlaceAction(j.Stages[0], 0, scheduler.NodeID(i/4), -1)), w.Now); err != nil {
			t.Fatal(err)
		}
		i++
	}
	w.Start()
	cfg := testConfig(func(c *Config) { c.Queues, c.First, c.Step = 3, 10, 10 })
	x := NewIndex(cfg, false, func(*scheduler.Job) int { return 0 }, noAccount)
	for range 10 { // it reads them in parts
		x.Sync(w.State, w.Now, 1)
		w.Advance(1)
	}
	at := x.Demotion()
	w.Advance(at.Sub(w.Now) + time.Second)
	recorded := scheduler.JobID(0)
	for _, want := range []int{maxUnrecorded, maxUnrecorded, 500, 0} {
		x.Sync(w.State, w.Now, 1)
		if x.Demotion() <= w.Now || x.HasUnread() {
			t.Fatalf("the next demotion is at %v, now is %v", x.Demotion(), w.Now)
		}
		var states []scheduler.PolicyState
		x.eachUnrecorded(0, func(j *scheduler.Job, level int) {
			if level != 2 || j.Spec.ID <= recorded {
				t.Fatalf("job %d of queue %d follows job %d", j.Spec.ID, level, recorded)
			}
			recorded = j.Spec.ID
			states = append(states, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(level), At: w.Now})
		})
		if len(states) != want {
			t.Fatalf("%d jobs are to record, want %d", len(states), want)
		}
		if err := w.State.PolicyStates().Apply(states); err != nil {
			t.Fatal(err)
		}
	}
}
