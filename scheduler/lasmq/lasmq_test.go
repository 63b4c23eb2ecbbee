package lasmq

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func testConfig(change func(*Config)) Config {
	c := Default()
	if change != nil {
		change(&c)
	}
	return c
}

// simulateFluid simulates one server that serves the first queue with work, its jobs
// in order of submission, and demotes by the config. It returns the response times.
func simulateFluid(c Config, sizes, arrivals []float64) []float64 {
	served, level, done := make([]float64, len(sizes)), make([]int, len(sizes)), make([]float64, len(sizes))
	for now, left := 0.0, len(sizes); left > 0; {
		best, next := -1, math.Inf(1)
		for i := range sizes {
			switch {
			case done[i] > 0:
			case arrivals[i] > now:
				next = min(next, arrivals[i])
			default:
				if level[i] = c.queueFor(max(level[i], 1), math.Nextafter(served[i], math.Inf(1))); best < 0 || level[i] < level[best] {
					best = i
				}
			}
		}
		if best < 0 {
			now = next
			continue
		}
		run := min(sizes[best]-served[best], c.threshold(level[best])-served[best], next-now)
		now, served[best] = now+run, served[best]+run
		if served[best] == sizes[best] {
			done[best], left = now, left-1
		}
	}
	for i := range done {
		done[i] -= arrivals[i]
	}
	return done
}

func TestLASMQFigure1(t *testing.T) {
	c := testConfig(func(c *Config) { c.Queues, c.First = 2, 1 })
	got := simulateFluid(c, []float64{4, 4, 1}, []float64{0, 1, 2})
	for i, want := range []float64{6, 8, 1} {
		if got[i] != want {
			t.Fatalf("responses %v, want 6, 8, 1", got)
		}
	}
}

// Sections 3.2 and 3.6: strictly above the threshold, never promoted, straight to
// the right queue; k = 1 + ceil(log_p(s/alpha_1)), printed ceil(log s).
func TestLASMQSection36Thresholds(t *testing.T) {
	c := testConfig(nil)
	for _, x := range []struct {
		from    int
		service float64
		want    int
	}{{1, 0, 1}, {1, 100, 1}, {1, 100.1, 2}, {1, 1000, 2}, {1, 1001, 3}, {1, 5e6, 6}, {3, 50, 3}, {1, 1e300, 10}, {12, 0, 10}, {0, 0, 1}} {
		if got := c.queueFor(x.from, x.service); got != x.want {
			t.Errorf("service %v from queue %d: queue %d, want %d", x.service, x.from, got, x.want)
		}
	}
	for _, x := range []struct {
		largest, first, step float64
		want                 int
	}{{100, 100, 10, 1}, {101, 100, 10, 2}, {1e5, 100, 10, 4}, {1e5 + 1, 100, 10, 5}, {1, 1, 2, 1}, {math.Inf(1), 1, 2, MaxQueues}} {
		k := queuesFor(x.largest, x.first, x.step)
		if k != x.want {
			t.Errorf("QueuesFor(%v, %v, %v) = %d, want %d", x.largest, x.first, x.step, k, x.want)
		}
		c := testConfig(func(c *Config) { c.Queues, c.First, c.Step = k, x.first, x.step })
		if k < MaxQueues && (c.queueFor(1, x.largest) != k || (k > 1 && c.threshold(k-1) >= x.largest)) {
			t.Errorf("a job of %v ends in queue %d of %d", x.largest, c.queueFor(1, x.largest), k)
		}
	}
}

// 1 container for 5 s and 2 for 3 s are 11 container-seconds; 10 container-seconds
// at 10% of a stage predict 100, below 10% they count as 10; a reduce of 4 GB is 2
// containers.
func TestLASMQSection32Service(t *testing.T) {
	unit := scheduler.Resources{1000, 2 << 30, 1e9}
	w := schedtest.New(t).AddNodes(1, schedtest.R(16, 64, 1000)).AddTenants("a")
	id := w.Submit("a", 10, schedtest.R(1, 2, 1))
	w.Place(scheduler.TaskID{Job: id}, 0)
	w.Start().Advance(5 * time.Second)
	w.Place(scheduler.TaskID{Job: id, Index: 1}, 0)
	w.Start().Advance(3 * time.Second)
	j := w.State.Job(id)
	plain, aware := testConfig(func(c *Config) { c.StageAware = false }), testConfig(nil)
	if got, later := plain.Service(j, w.Now), plain.Service(j, w.Now.Add(time.Second)); got != 11 || later != 13 {
		t.Errorf("service %v and a second later %v, want 11 and 13", got, later)
	}
	if got := plain.Containers(schedtest.R(1, 4, 1)); got != 2 || plain.Unit != unit {
		t.Errorf("a task of 4 GB is %v containers", got)
	}

	v := schedtest.New(t).AddNodes(1, schedtest.R(16, 64, 1000)).AddTenants("a")
	id = v.Submit("a", 10, schedtest.R(1, 2, 1))
	a := v.Place(scheduler.TaskID{Job: id}, 0)
	v.Start().Advance(10 * time.Second)
	j = v.State.Job(id)
	for part, want := range map[float64]float64{0.5: 10, 1: 100} {
		if err := v.State.Events().AttemptProgress(a.ID, a.Run, part, 0); err != nil {
			t.Fatal(err)
		}
		if got := aware.Service(j, v.Now); math.Abs(got-want) > 1e-6 {
			t.Errorf("10 container-seconds at %v%% of the stage: %v, want %v", part*10, got, want)
		}
	}
	if got := plain.Service(j, v.Now); got != 10 {
		t.Errorf("without stage awareness %v, want 10", got)
	}
	if got := aware.measure(j).remaining; got != 10 {
		t.Errorf("remaining tasks use %v containers, running ones included: want 10", got)
	}
}

func TestRatesShareByWeightAndConserveWork(t *testing.T) {
	c := testConfig(func(c *Config) { c.Queues, c.Decay = 3, 0.5 })
	for name, x := range map[string]struct {
		capacity float64
		demand   []float64
		want     []float64
	}{
		"all want more":                  {70, []float64{100, 100, 100}, []float64{40, 20, 10}},
		"the remainder is divided again": {70, []float64{10, 100, 100}, []float64{10, 40, 20}},
		"an empty queue gets none":       {60, []float64{100, 0, 100}, []float64{48, 0, 12}},
		"more than all want":             {100, []float64{10, 20, 30}, []float64{10, 20, 30}},
		"no capacity":                    {0, []float64{10, 20, 30}, []float64{0, 0, 0}},
	} {
		got := make([]float64, 3)
		c.rates(x.capacity, x.demand, got)
		for i := range got {
			if math.Abs(got[i]-x.want[i]) > 1e-9 {
				t.Errorf("%s: %v, want %v", name, got, x.want)
				break
			}
		}
	}
}

func oneGroup(*scheduler.Job) int { return 0 }

func noAccount(int, int) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.DeficitState}
}

// simulateShares simulates always backlogged queues on some containers, with tasks
// of random lengths up to the horizon and the accounts that a policy records. It
// returns for each queue the most it was behind and ahead of weight x time, in
// container-seconds counted independently.
func simulateShares(t *rapid.T, queues, containers int, decay float64, steps int) (behind, ahead []float64) {
	c := testConfig(func(c *Config) { c.Queues, c.Decay, c.Horizon, c.Order = queues, decay, 10*time.Second, OrderFIFO })
	w := schedtest.New(t).AddNodes(1, schedtest.R(float64(containers), 1000, 1000)).AddTenants("a")
	var jobs []*scheduler.Job
	for range queues {
		jobs = append(jobs, w.State.Job(w.Submit("a", int32(steps+containers), schedtest.R(1, 2, 1))))
	}
	c.First = 1e15 // jobs stay in the queues that are recorded
	for i, j := range jobs {
		n := scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(i + 1), At: w.Now}
		if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{n}); err != nil {
			t.Fatal(err)
		}
	}
	accounts := map[int]account{}
	x := NewIndex(c, false, oneGroup, noAccount)
	x.account = func(_, i int) (account, bool) { a, ok := accounts[i]; return a, ok }
	behind, ahead = make([]float64, queues), make([]float64, queues)
	ends := map[scheduler.AttemptID]scheduler.Time{}
	next := make([]int32, queues)
	total, start := 0.0, w.Now
	for i := range queues {
		total += c.weight(i + 1)
	}
	for range steps {
		x.Sync(w.State, w.Now, 1)
		q := x.Queues(0)
		q.Begin(w.Now)
		for w.State.Attempts().Live() < containers {
			job, _ := q.Next(false)
			i := int(job.Job.Spec.ID) - 1
			a := w.Place(scheduler.TaskID{Job: jobs[i].Spec.ID, Index: next[i]}, 0)
			next[i]++
			ends[a.ID] = w.Now.Add(time.Duration(rapid.Int64Range(1, 10_000).Draw(t, "ms")) * time.Millisecond)
			q.RecordPlaced(schedtest.R(1, 2, 1), 1)
		}
		x.Sync(w.State, w.Now, 1)
		q.eachAccount(w.Now, func(i int, a account, _ bool) { accounts[i] = a })
		sum := 0.0
		for i := range queues {
			sum += accounts[i+1].deficit
			got := jobs[i].Stages[0].TaskTime(w.Now).Seconds()
			due := c.weight(i+1) / total * float64(containers) * w.Now.Sub(start).Seconds()
			behind[i], ahead[i] = max(behind[i], due-got), max(ahead[i], got-due)
		}
		if math.Abs(sum) > 1e-6 {
			t.Fatalf("deficits add up to %v: service is not conserved", sum)
		}
		var first *scheduler.Attempt
		for _, a := range w.Attempts() {
			if first == nil || ends[a.ID] < ends[first.ID] {
				first = a
			}
		}
		w.Now = max(w.Now, ends[first.ID])
		w.End(first, scheduler.OutcomeSucceeded)
	}
	return behind, ahead
}

// One container: each backlogged queue is within one largest task (10 s) of weight x
// time, however small its weight.
func TestQueueSharesAreWithinOneTask(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		decay := rapid.SampledFrom([]float64{1, 0.5, 0.1}).Draw(t, "decay")
		behind, ahead := simulateShares(t, rapid.IntRange(2, 4).Draw(t, "queues"), 1, decay, 120)
		for i := range behind {
			if behind[i] > 10+1e-6 || ahead[i] > 10+1e-6 {
				t.Fatalf("queue %d was behind by %v and ahead by %v container-seconds", i+1, behind[i], ahead[i])
			}
		}
	})
}

// Many containers at once: within one largest task and the share's rounding to whole
// containers. With the paper's weights on 120 containers no queue starves.
func TestContainersAreSharedByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		behind, _ := simulateShares(t, 3, rapid.IntRange(2, 12).Draw(t, "containers"), rapid.SampledFrom([]float64{1, 0.5, 0.1}).Draw(t, "decay"), 150)
		for i := range behind {
			if behind[i] > 2*10 {
				t.Fatalf("queue %d was behind by %v container-seconds", i+1, behind[i])
			}
		}
	})
}

// The order in a queue (section 3.3) and its alternatives.
func TestQueueOrders(t *testing.T) {
	for name, want := range map[Order][]scheduler.JobID{
		OrderRemaining: {3, 2, 1},
		OrderFIFO:      {1, 2, 3},
	} {
		w := schedtest.New(t).AddNodes(2, schedtest.R(16, 64, 1000)).AddTenants("a")
		stages := []scheduler.StageSpec{
			{Name: "m", Kind: scheduler.KindMap, Tasks: 2, Demand: schedtest.R(1, 2, 1)},
			{Name: "r", Kind: scheduler.KindReduce, Tasks: 9, Demand: schedtest.R(1, 4, 1), After: []int32{0}},
		}
		w.SubmitStages("a", stages)
		w.Submit("a", 5, schedtest.R(1, 2, 1))
		w.Submit("a", 4, schedtest.R(1, 2, 1))
		w.Place(scheduler.TaskID{Job: 1}, 0)
		w.Start().Advance(10 * time.Second)
		w.Place(scheduler.TaskID{Job: 3}, 0)
		w.Start().Advance(time.Second)
		x := NewIndex(testConfig(func(c *Config) { c.Order = name }), false, oneGroup, noAccount)
		x.Sync(w.State, w.Now, 1)
		q := x.Queues(0)
		q.Begin(w.Now)
		for _, id := range want {
			if got, ok := q.Next(false); !ok || got.Job.Spec.ID != id {
				t.Errorf("%v: %+v is next, want job %d", name, got, id)
			}
			q.Drop()
		}
		if _, ok := q.Next(false); ok {
			t.Errorf("%v: Next returned a fourth job", name)
		}
	}
}

func TestPredictionFromInputBytes(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(16, 64, 1000)).AddTenants("a")
	c := testConfig(nil)
	if got := c.predictService(w.State.History(), "x", 1<<30); got != 0 {
		t.Errorf("without history %v", got)
	}
	in := schedtest.Inputs(1<<20, []scheduler.NodeID{0})
	for range 6 {
		id := w.Submit("a", 1, schedtest.R(2, 2, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { j.Name, g.Inputs = "words", in })
		a := w.Place(scheduler.TaskID{Job: id}, 0)
		w.Start().Advance(3*time.Second).End(a, scheduler.OutcomeSucceeded)
	}
	// 2 containers for 3 s a MiB.
	if got := c.predictService(w.State.History(), "words", 10<<20); math.Abs(got-60) > 1e-9 {
		t.Errorf("10 MiB are predicted to take %v container-seconds, want 60", got)
	}
}

// queuesFor returns the number of queues that separates jobs up to the largest size:
// k = 1 + ceil(log_p(largest/alpha_1)), section 3.6 (printed ceil(log s)).
func queuesFor(largest, first, step float64) int {
	k := 1
	for t := first; t < largest && k < MaxQueues; t *= step {
		k++
	}
	return k
}

// rates divides a capacity (containers) between queues by weight, at most what each
// can use: Alg. 2 in a fluid model, where the remainder is divided again until all
// capacity or all demand is used (section 3.5, work conservation). demand[i] is what
// queue i+1 can use; the result is stored in rates. O(queues squared).
func (c *Config) rates(capacity float64, demand, rates []float64) {
	clear(rates)
	for range demand {
		weights := 0.0
		for i, d := range demand {
			if rates[i] < d {
				weights += c.weight(i + 1)
			}
		}
		if weights == 0 || capacity <= 0 {
			return
		}
		full, given := false, 0.0
		for i, d := range demand { // first the queues that get all they can use
			if share := capacity * c.weight(i+1) / weights; rates[i] < d && rates[i]+share >= d {
				given += d - rates[i]
				rates[i], full = d, true
			}
		}
		if full {
			capacity -= given
			continue
		}
		for i, d := range demand {
			if rates[i] < d {
				rates[i] += capacity * c.weight(i+1) / weights
			}
		}
		return
	}
}
