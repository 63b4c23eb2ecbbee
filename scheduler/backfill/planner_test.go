package backfill

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// slotLength is the length of a slot in the paper's examples.
const slotLength = 10

func oneTaskRequest(id int, te int, q ...int64) Request {
	return Request{Job: scheduler.JobID(id), Tasks: []int32{0}, Need: Need{Base: q}, Bound: time.Duration(te * slotLength)}
}

// Submit plans a new project and guarantees its departure. With an error the plan is as it was.
func (p *Planner) Submit(now scheduler.Time, in Project) (Guarantee, error) {
	p.Restore(in, Guarantee{}, false, func(Key, *Need) Existing { return Existing{} })
	q, err := p.CompletePlan(now, in.ID)
	if err != nil {
		p.registry.unregister(p, p.registry.projects[in.ID])
	}
	return q, err
}

// simulatePlan submits projects as they arrive, starts the tasks that are due and ends
// each at its bound; it returns the finish time of each job.
func simulatePlan(t *testing.T, cfg Config, totals []int64, projects []Project) map[scheduler.JobID]scheduler.Time {
	t.Helper()
	prof := &Profile{}
	prof.AddBin(totals)
	p := NewPlanner(cfg, prof)
	finish := map[scheduler.JobID]scheduler.Time{}
	for now := scheduler.Time(0); now < 200*slotLength; now += slotLength {
		var ended, due []Key
		p.Scan(func(x *PlannedTask) {
			if x.Started && x.End <= now {
				ended = append(ended, x.Key)
			}
		})
		for _, k := range ended {
			finish[k.Job] = now
			p.End(k, now)
		}
		for _, pr := range projects {
			if pr.Submitted == now {
				if _, err := p.Submit(now, pr); err != nil {
					t.Fatal(err)
				}
			}
		}
		p.Scan(func(x *PlannedTask) {
			if !x.Started && x.Spot.At <= now {
				due = append(due, x.Key)
			}
		})
		for _, k := range due {
			p.Start(k, now)
		}
	}
	return finish
}

// table3 is the example of section 4.5. q1 of p1 and p2 is illegible there; these
// values reproduce the printed results.
func table3() []Project {
	return []Project{
		{ID: 1, Submitted: 0, Requests: []Request{oneTaskRequest(11, 2, 1, 2), oneTaskRequest(12, 6, 1, 2)}},
		{ID: 2, Submitted: 1 * slotLength, Requests: []Request{oneTaskRequest(21, 1, 2, 3)}},
		{ID: 3, Submitted: 2 * slotLength, Requests: []Request{oneTaskRequest(31, 1, 1, 2), oneTaskRequest(32, 4, 2, 1)}},
		{ID: 4, Submitted: 5 * slotLength, Requests: []Request{oneTaskRequest(41, 2, 1, 2)}},
	}
}

func TestTwoTierTables3And4(t *testing.T) {
	for name, c := range map[string]struct {
		cfg        Config
		finish     []int // of j1,1 j1,2 j2,1 j3,1 j3,2 j4,1
		turnaround float64
	}{
		"two-tier strict backfilling":                        {Config{Variant: Strict}, []int{2, 6, 7, 3, 11, 9}, 6.25},
		"two-tier flexible backfilling, SF = 0.2 and PL = 8": {Config{Variant: FlexibleSF, SlackFactor: 0.2, PreemptionLimit: 8}, []int{2, 6, 8, 3, 7, 10}, 5.75},
		"no project may depart later":                        {Config{Variant: FlexibleSF, SlackFactor: 0.2, PreemptionLimit: 0}, []int{2, 6, 7, 3, 11, 9}, 6.25},
		"no slack":                                           {Config{Variant: Flexible, SlackFactor: 0.2, PreemptionLimit: 8}, []int{2, 6, 7, 3, 11, 9}, 6.25},
	} {
		t.Run(name, func(t *testing.T) {
			got := simulatePlan(t, c.cfg, []int64{3, 4}, table3())
			sum := 0.0
			departure := map[scheduler.JobID]scheduler.Time{}
			for i, id := range []scheduler.JobID{11, 12, 21, 31, 32, 41} {
				if want := scheduler.Time(c.finish[i] * slotLength); got[id] != want {
					t.Errorf("job %d finishes at %v, want %v", id, float64(got[id])/slotLength, c.finish[i])
				}
				departure[id/10] = max(departure[id/10], got[id])
			}
			for _, pr := range table3() {
				sum += float64(departure[scheduler.JobID(pr.ID)]-pr.Submitted) / slotLength
			}
			if sum/4 != c.turnaround {
				t.Errorf("mean project turn-around %v, want %v", sum/4, c.turnaround)
			}
		})
	}
}

// Section 4.5: the latest start of j2,1 is 7.0 + 6.0 x 0.2 - 1.0 = 7.2.
func TestTwoTierLatestStartOfTheExample(t *testing.T) {
	prof := &Profile{}
	prof.AddBin([]int64{3, 4})
	p := NewPlanner(Config{Variant: FlexibleSF, SlackFactor: 0.2, PreemptionLimit: 8}, prof)
	for _, pr := range table3()[:2] {
		if _, err := p.Submit(pr.Submitted, pr); err != nil {
			t.Fatal(err)
		}
		for _, r := range pr.Requests {
			if x, _ := p.Find(Key{Job: r.Job}); x.Spot.At == pr.Submitted {
				p.Start(x.Key, pr.Submitted)
			}
		}
	}
	x, _ := p.Find(Key{Job: 21})
	if latest := p.bins.latestStart(p.registry.item(x.Key)); x.Spot.At != 6*slotLength || latest != 72 {
		t.Errorf("j2,1 starts at %d, at the latest %d; want 60 and 72", x.Spot.At, latest)
	}
}

// A high-priority project displaces a low one within its slack, never a high
// one; a low one displaces nobody.
func TestTwoTierPriority(t *testing.T) {
	for name, c := range map[string]struct {
		first, second bool
		pl            int
		want          [2]scheduler.Time
	}{
		"high displaces low":          {false, true, NoLimit, [2]scheduler.Time{14, 0}},
		"but not beyond the limit":    {false, true, 0, [2]scheduler.Time{10, 20}},
		"high does not displace high": {true, true, NoLimit, [2]scheduler.Time{10, 20}},
		"low displaces nobody":        {false, false, NoLimit, [2]scheduler.Time{10, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			prof := &Profile{}
			prof.AddBin([]int64{4})
			p := NewPlanner(Config{Variant: Priority, SlackFactor: 1, PreemptionLimit: c.pl}, prof)
			submit := func(id int, high bool, te int64, q int64) {
				_, err := p.Submit(0, Project{ID: scheduler.ProjectID(id), HighPriority: high, Requests: []Request{{Job: scheduler.JobID(id), Tasks: []int32{0}, Need: Need{Base: []int64{q}}, Bound: time.Duration(te)}}})
				if err != nil {
					t.Fatal(err)
				}
			}
			submit(1, true, 10, 3)
			p.Start(Key{Job: 1}, 0)
			submit(2, c.first, 10, 4)  // waits until 10
			submit(3, c.second, 14, 1) // fits now, but not beside the second
			a, _ := p.Find(Key{Job: 2})
			b, _ := p.Find(Key{Job: 3})
			if got := [2]scheduler.Time{a.Spot.At, b.Spot.At}; got != c.want {
				t.Errorf("low or first starts at %d, second at %d; want %v", got[0], got[1], c.want)
			}
		})
	}
}

// If a project's account is overdrawn, only reservations of the same account are
// displaced: those of one tenant yield to each other within their slack. Started tasks
// never yield.
func TestOnlyOwnReservationsYieldToAnOverdrawnAccount(t *testing.T) {
	for name, c := range map[string]struct {
		accounts [2]int32 // of the second and the third project
		share    int64
		want     scheduler.Time // start of the third
	}{
		"its own reservations yield":                      {[2]int32{1, 1}, 4, 0},
		"others do not yield if the account is overdrawn": {[2]int32{2, 1}, 3, 20},
		"others yield if it is not":                       {[2]int32{2, 1}, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			prof, accounts := &Profile{}, &Profile{}
			prof.AddBin([]int64{4})
			accounts.AddBin([]int64{c.share, 0})
			accounts.AddBin([]int64{4, 0})
			p := NewPlanner(Config{Variant: FlexibleSF, SlackFactor: 2, PreemptionLimit: NoLimit}, prof)
			p.space.accounts = accounts
			for i, x := range []struct {
				account int32
				te, q   int64
			}{{1, 10, 3}, {c.accounts[0], 10, 4}, {c.accounts[1], 14, 1}} {
				id := scheduler.JobID(i + 1)
				if _, err := p.Submit(0, Project{ID: scheduler.ProjectID(id), Account: x.account,
					Requests: []Request{{Job: id, Tasks: []int32{0}, Need: Need{Base: []int64{x.q}}, Bound: time.Duration(x.te)}}}); err != nil {
					t.Fatal(err)
				}
				if id == 1 {
					p.Start(Key{Job: 1}, 0)
				}
			}
			if x, _ := p.Find(Key{Job: 3}); x.Spot.At != c.want {
				t.Errorf("the third starts at %d, want %d", x.Spot.At, c.want)
			}
		})
	}
}

func drawProject(t *rapid.T, id int, now scheduler.Time, k int) Project {
	p := Project{ID: scheduler.ProjectID(id), Submitted: now, HighPriority: rapid.IntRange(0, 4).Draw(t, "high") == 0}
	for i := range rapid.IntRange(1, 4).Draw(t, "jobs") {
		q := make([]int64, k)
		for r := range q {
			q[r] = int64(rapid.IntRange(0, 5).Draw(t, "q"))
		}
		p.Requests = append(p.Requests, Request{Job: scheduler.JobID(id*10 + i), Tasks: []int32{0}, Need: Need{Base: q}, Bound: time.Duration(rapid.IntRange(1, 30).Draw(t, "te"))})
	}
	return p
}

func drawConfig(t *rapid.T) Config {
	return Config{Variant: Variant(rapid.IntRange(1, 4).Draw(t, "variant")), SlackFactor: float64(rapid.IntRange(0, 6).Draw(t, "SF")) / 4,
		PreemptionLimit: rapid.IntRange(-1, 3).Draw(t, "PL")}
}

// Under random projects, early ends and passing time, the planner and the naive judge
// have the same plan; compression moves no task later; no project departs after its
// guarantee; no bin is over capacity at any time.
func TestPlannerMatchesTheJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.MaxTries = rapid.IntRange(0, 8).Draw(t, "tries")
		k, bins := rapid.IntRange(1, 3).Draw(t, "resources"), rapid.IntRange(1, 3).Draw(t, "bins")
		prof := &Profile{}
		n := &judge{guarantees: map[scheduler.ProjectID]Guarantee{}}
		for range bins {
			total := make([]int64, k)
			for r := range total {
				total[r] = int64(rapid.IntRange(3, 8).Draw(t, "M"))
			}
			prof.AddBin(total)
			n.totals = append(n.totals, total)
		}
		p := NewPlanner(cfg, prof)
		n.cfg = p.cfg
		p.classes.finderThreshold = rapid.SampledFrom([]int{1, 2, finderMinItems}).Draw(t, "finder threshold")
		accounts := rapid.IntRange(0, 3).Draw(t, "accounts")
		if accounts > 0 {
			drawn := &Profile{}
			for range accounts {
				share := make([]int64, k)
				for r := range share {
					share[r] = int64(rapid.IntRange(5, 12).Draw(t, "share"))
				}
				drawn.AddBin(append(slices.Clone(share), 0)) // and no I/O
				n.shares = append(n.shares, share)
			}
			p.space.accounts, p.space.caps = drawn, &Profile{}
			for range 2 {
				limit := make([]int64, k)
				for r := range limit {
					limit[r] = int64(rapid.IntRange(5, 12).Draw(t, "cap"))
				}
				p.space.caps.AddBin(append(slices.Clone(limit), 0))
				n.caps = append(n.caps, limit)
			}
		}
		now := scheduler.Time(0)
		for id := 1; id <= rapid.IntRange(2, 14).Draw(t, "projects"); id++ {
			pr := drawProject(t, id, now, k)
			pr.Account = int32(rapid.IntRange(0, accounts).Draw(t, "account"))
			for i := range pr.Requests {
				if accounts > 0 {
					pr.Requests[i].Caps = [][]int32{nil, {0}, {0, 1}}[rapid.IntRange(0, 2).Draw(t, "caps")]
				}
			}
			got, err := p.Submit(now, pr)
			want, ok := n.submit(now, pr)
			if (err == nil) != ok || got != want {
				t.Fatalf("project %d: guarantee %v %v, the judge says %v %v", id, got, err, want, ok)
			}
			checkSamePlan(t, p, n, now)
			now += scheduler.Time(rapid.IntRange(0, 12).Draw(t, "passes"))
			advanceBoth(t, p, n, now)
			checkSamePlan(t, p, n, now)
		}
	})
}

// With 500 waiting projects, compression gives the same plan as the naive judge.
func TestCompressOf500ProjectsMatchesTheJudge(t *testing.T) {
	moved := 0
	for _, variant := range []Variant{Strict, FlexibleSF} {
		r := rand.New(rand.NewPCG(seed.New(t), uint64(variant)))
		prof, n := &Profile{}, &judge{guarantees: map[scheduler.ProjectID]Guarantee{}}
		for range 40 {
			prof.AddBin([]int64{32, 128, 1000})
			n.totals = append(n.totals, []int64{32, 128, 1000})
		}
		p := NewPlanner(Config{Variant: variant, SlackFactor: 0.5, PreemptionLimit: NoLimit, MaxTries: 0}, prof)
		n.cfg = Config{Variant: variant, SlackFactor: 0.5, PreemptionLimit: NoLimit}
		for id := 1; id <= 600; id++ {
			pr := Project{ID: scheduler.ProjectID(id), Requests: []Request{{Job: scheduler.JobID(id), Tasks: []int32{0}, Bound: time.Duration(1 + r.IntN(1000)),
				Need: Need{Base: []int64{int64(1 + r.IntN(16)), int64(1 + r.IntN(64)), int64(r.IntN(400))}}}}}
			q, err := p.Submit(0, pr)
			if err != nil {
				t.Fatal(err)
			}
			x, _ := p.Find(Key{Job: scheduler.JobID(id)})
			n.all = append(n.all, &judgedTask{key: x.Key, project: pr, need: pr.Requests[0].Need.Base, bound: pr.Requests[0].Bound, bin: int(x.Spot.Bin), at: x.Spot.At})
			n.guarantees[pr.ID] = q
		}
		for _, x := range n.all { // as placed by the last submissions
			y, _ := p.Find(x.key)
			x.bin, x.at, x.started = int(y.Spot.Bin), y.Spot.At, y.Spot.At == 0
			if x.started {
				p.Start(x.key, 0)
			}
		}
		for now := scheduler.Time(10); now <= 30; now += 10 {
			i := slices.IndexFunc(n.all, func(x *judgedTask) bool { return x.started && x.end() > now })
			k := n.all[i].key
			n.end(k)
			p.End(k, now)
			if compressAll(p, now) {
				moved++
			}
			n.compress(now)
			for _, x := range n.all {
				if y, _ := p.Find(x.key); y.Spot.At != x.at || int(y.Spot.Bin) != x.bin {
					t.Fatalf("%v at %d: job %d is at %d on %d, the judge says %d on %d", variant, now, x.key.Job, y.Spot.At, y.Spot.Bin, x.at, x.bin)
				}
			}
		}
	}
	if moved == 0 {
		t.Error("no task moved in any of the compressions")
	}
}

// compressAll compresses the whole plan, and reports whether a task moved.
func compressAll(p *Planner, now scheduler.Time) bool {
	p.HasChanged()
	p.Compress(now, Position{Submitted: math.MinInt64}, math.MaxInt)
	return p.HasChanged()
}

// advanceBoth starts the tasks that are due and ends one or two early, in the planner
// and the judge.
func advanceBoth(t *rapid.T, p *Planner, n *judge, now scheduler.Time) {
	var running []*judgedTask
	for _, x := range append([]*judgedTask(nil), n.all...) {
		if !x.started && x.at <= now {
			x.started = true
			p.Start(x.key, x.at)
		}
		if x.started && x.end() <= now {
			if x.end() > n.guarantees[x.project.ID].Latest {
				t.Fatalf("job %d ends at %d, guaranteed was %v", x.key.Job, x.end(), n.guarantees[x.project.ID])
			}
			n.end(x.key)
			if p.End(x.key, now) {
				t.Fatal("an end at the bound counts as early")
			}
		} else if x.started {
			running = append(running, x)
		}
	}
	for len(running) > 0 && rapid.IntRange(0, 2).Draw(t, "ends early") > 0 {
		x := running[rapid.IntRange(0, len(running)-1).Draw(t, "which")]
		running = nil
		n.end(x.key)
		if !p.End(x.key, now) {
			t.Fatal("an early end does not count as early")
		}
		before := map[Key]scheduler.Time{}
		p.Scan(func(x *PlannedTask) { before[x.Key] = x.Spot.At })
		compressAll(p, now)
		p.Scan(func(x *PlannedTask) {
			if x.Spot.At > before[x.Key] {
				t.Fatalf("%v moved later, from %d to %d", x.Key, before[x.Key], x.Spot.At)
			}
		})
		n.compress(now)
	}
}

func checkSamePlan(t *rapid.T, p *Planner, n *judge, now scheduler.Time) {
	if p.Len() != len(n.all) {
		t.Fatalf("%d items, the judge has %d", p.Len(), len(n.all))
	}
	for _, x := range n.all {
		if got, ok := p.Find(x.key); !ok || got.Spot.At != x.at || int(got.Spot.Bin) != x.bin {
			t.Fatalf("job %v is at %d on %d, the judge says %d on %d", x.key, got.Spot.At, got.Spot.Bin, x.at, x.bin)
		}
	}
	for b := range p.space.profile.Bins() {
		if at := p.space.profile.FirstOverCapacity(b, now, scheduler.Never); at != scheduler.Never {
			t.Fatalf("bin %d is over capacity at %d", b, at)
		}
	}
	for _, pr := range p.registry.submitOrder {
		if d := pr.departure(); d > pr.guarantee.Latest {
			t.Fatalf("project %d departs at %d, guaranteed was %v", pr.ID, d, pr.guarantee)
		}
	}
}

// Under consecutive stages and lost nodes, every stage
// starts after its predecessors, no bin is over capacity, and every project that
// departs late is reported once, with the cause.
func TestViolationsNameTheirCause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prof := &Profile{}
		bins := int32(rapid.IntRange(2, 4).Draw(t, "bins"))
		for range bins {
			prof.AddBin([]int64{8, 8})
		}
		p := NewPlanner(drawConfig(t), prof)
		reported := map[scheduler.ProjectID]Cause{}
		record := func(broken []Violation, want Cause) {
			for _, b := range broken {
				if reported[b.Project] != 0 || b.Cause != want || b.Departure <= b.Latest {
					t.Fatalf("%+v after %v", b, reported)
				}
				reported[b.Project] = b.Cause
			}
		}
		now, down := scheduler.Time(0), 0
		for id := 1; id < 25; id++ {
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op < 3:
				pr := drawProject(t, id, now, 2)
				for i := range pr.Requests {
					r := &pr.Requests[i]
					r.Job, r.Stage, r.Tasks = scheduler.JobID(id), int32(i), []int32{0, 1, 2}
					if i > 0 {
						r.After = []int32{int32(i - 1)}
					}
				}
				if _, err := p.Submit(now, pr); err != nil {
					t.Fatal(err)
				}
			case op == 4 && down < int(bins)-1:
				b := rapid.Int32Range(0, bins-1).Draw(t, "lost")
				if !prof.Closed(b) {
					down++
					record(loseBin(p, b, now), CauseNodeLost)
				}
			}
			record(p.Replan(now, CauseLate, lateTasks(p, now)...), CauseLate)
			now = advanceToNext(t, p, now)
			for _, pr := range p.registry.submitOrder {
				if pr.departure() > pr.guarantee.Latest && reported[pr.ID] == 0 {
					t.Fatalf("project %d departs late and no violation was reported", pr.ID)
				}
			}
			checkOrderAndCapacity(t, p, now)
		}
	})
}

// lateTasks returns the waiting tasks that have no spot or start before they can.
func lateTasks(p *Planner, now scheduler.Time) (out []Key) {
	for _, pr := range p.registry.submitOrder {
		for _, g := range pr.groups {
			open := g.openTime(now)
			for _, it := range g.items {
				if it.isLate(open) {
					out = append(out, it.key)
				}
			}
		}
	}
	return out
}

// advanceToNext advances time by a random step, starts the tasks that become due and
// ends tasks at their bound.
func advanceToNext(t *rapid.T, p *Planner, now scheduler.Time) scheduler.Time {
	next := now + scheduler.Time(rapid.IntRange(1, 20).Draw(t, "passes"))
	for ; now < next; now++ {
		var ended, due []Key
		p.Scan(func(x *PlannedTask) {
			if x.Started && x.End <= now {
				ended = append(ended, x.Key)
			}
		})
		for _, k := range ended {
			p.End(k, now)
		}
		p.Scan(func(x *PlannedTask) {
			if !x.Started && x.Spot.At == now {
				due = append(due, x.Key)
			}
		})
		for _, k := range due {
			p.Start(k, now)
		}
	}
	return now
}

func checkOrderAndCapacity(t *rapid.T, p *Planner, now scheduler.Time) {
	for _, it := range p.registry.items {
		if !it.started && it.placed && it.spot.At < it.group.openTime(scheduler.Time(0)) {
			t.Fatalf("%v starts at %d, before what it comes after", it.key, it.spot.At)
		}
	}
	for b := range p.space.profile.Bins() {
		if at := p.space.profile.FirstOverCapacity(b, now, scheduler.Never); at != scheduler.Never {
			t.Fatalf("bin %d is over capacity at %d", b, at)
		}
	}
}

// While no more nodes are lost than there are spare ones, no guarantee of waiting tasks
// is violated.
func TestSpareNodesPreserveWaitingGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prof := &Profile{}
		for range 6 {
			prof.AddBin([]int64{8, 8})
		}
		p := NewPlanner(drawConfig(t), prof)
		p.bins.setSpare(p.space.profile, 4, true)
		p.bins.setSpare(p.space.profile, 5, true)
		for id := 1; id <= rapid.IntRange(3, 20).Draw(t, "projects"); id++ {
			if _, err := p.Submit(0, drawProject(t, id, 0, 2)); err != nil {
				t.Fatal(err)
			}
		}
		p.Scan(func(x *PlannedTask) {
			if x.Spot.Bin >= 4 {
				t.Fatalf("%v is planned on a spare node", x.Key)
			}
		})
		for _, b := range rapid.Permutation([]int32{0, 1, 2, 3}).Draw(t, "lost")[:2] {
			if broken := loseBin(p, b, 0); len(broken) > 0 {
				t.Fatalf("lost node %d: %+v", b, broken)
			}
		}
		checkOrderAndCapacity(t, p, 0)
	})
}

func TestWhatFitsNowhereIsRefused(t *testing.T) {
	prof := &Profile{}
	prof.AddBin([]int64{4, 4})
	p := NewPlanner(Config{Variant: Strict}, prof)
	if _, err := p.Submit(0, Project{ID: 9, Requests: []Request{oneTaskRequest(91, 1, 1, 1)}}); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]Request{
		"another pool":       oneTaskRequest(1, 1, 1),
		"more than there is": oneTaskRequest(1, 1, 5, 1),
	} {
		_, err := p.Submit(0, Project{ID: 1, Requests: []Request{oneTaskRequest(2, 1, 1, 1), r}})
		if !errors.Is(err, errNeverFits) || p.Len() != 1 || prof.Steps(0) != 3 {
			t.Errorf("%s: %v, %d planned, %d steps", name, err, p.Len(), prof.Steps(0))
		}
	}
	// A job that needs nothing occupies nothing (Table 6).
	if _, err := p.Submit(0, Project{ID: 2, Requests: []Request{oneTaskRequest(3, 5, 0, 0)}}); err != nil || prof.Steps(0) != 3 {
		t.Errorf("a job that needs nothing: %v, %d steps", err, prof.Steps(0))
	}
	p.Start(Key{Job: 77}, 0)
	if p.End(Key{Job: 77}, 0) {
		t.Error("an unknown job counts")
	}
}

// crowdedPlanner returns a planner with the given number of projects on nodes of 32
// cores.
func crowdedPlanner(b testing.TB, nodes, projects, jobs int) *Planner {
	prof := &Profile{}
	for range nodes {
		prof.AddBin([]int64{32_000, 128 << 30}, timeline.Disk{IO: 1e9, Space: 1e12})
	}
	p := NewPlanner(Config{Variant: Strict}, prof)
	r := uint64(1)
	rnd := func(n uint64) int64 { r = r*6364136223846793005 + 1442695040888963407; return int64((r >> 33) % n) }
	project := func(id int) Project {
		pr := Project{ID: scheduler.ProjectID(id)}
		for j := range jobs {
			pr.Requests = append(pr.Requests, Request{Job: scheduler.JobID(id*jobs + j), Tasks: []int32{0}, Bound: time.Duration(60+rnd(3600)) * time.Second,
				Need: Need{Base: []int64{(1 + rnd(16)) * 1000, (1 + rnd(64)) << 30}, IO: rnd(300e6)}})
		}
		return pr
	}
	for id := range projects {
		if _, err := p.Submit(0, project(id+1)); err != nil {
			b.Fatal(err)
		}
	}
	p.Scan(func(x *PlannedTask) {
		if x.Spot.At == 0 {
			p.registry.item(x.Key).started = true
		}
	})
	return p
}

// 10,000 waiting projects on 1,000 nodes: one ends early (target 1 s; with five jobs
// each 10 s).
func BenchmarkTwoTier(b *testing.B) {
	for jobs, projects := range map[int]int{1: 14_000, 5: 11_000} {
		b.Run(fmt.Sprintf("replan/jobs=%d", jobs), func(b *testing.B) {
			p := crowdedPlanner(b, 1000, projects, jobs)
			running, waiting := runningAndWaiting(p)
			now, compressed, n := scheduler.Time(30*time.Second), 0, 0
			b.ResetTimer()
			for b.Loop() {
				p.End(running[n], now)
				n++
				now++
				if compressAll(p, now) {
					compressed++
				}
			}
			b.ReportMetric(float64(waiting), "waiting")
			b.ReportMetric(float64(compressed)/float64(n), "compressed/op")
		})
	}
}

// runningAndWaiting returns the running tasks and the number of projects with a waiting
// task.
func runningAndWaiting(p *Planner) (running []Key, waiting int) {
	projects := map[scheduler.ProjectID]bool{}
	p.Scan(func(x *PlannedTask) {
		if x.Started {
			running = append(running, x.Key)
		} else {
			projects[x.Project] = true
		}
	})
	return running, len(projects)
}

// loseBin loses one bin.
func loseBin(p *Planner, b int32, now scheduler.Time) []Violation {
	violated, _ := p.LoseBins(now, []int32{b}, func(int32) bool { return false })
	return violated
}

// Work on lost bins leaves them over several calls, each within its budget, and none is forgotten.
func TestLostBinsAreVacatedWithinTheBudget(t *testing.T) {
	const bins, lost, steps = 400, 300, 3_000
	prof := &Profile{}
	for range bins {
		prof.AddBin([]int64{4, 4})
	}
	p := NewPlanner(Config{Variant: Strict}, prof)
	tasks := make([]int32, bins)
	for i := range tasks {
		tasks[i] = int32(i)
	}
	for id := range 4 { // one after the other on each bin
		job := scheduler.JobID(id + 1)
		if _, err := p.Submit(0, Project{ID: scheduler.ProjectID(job), Requests: []Request{{Job: job, Tasks: tasks, Need: Need{Base: []int64{4, 4}}, Bound: time.Second}}}); err != nil {
			t.Fatal(err)
		}
	}
	all := make([]int32, lost)
	for i := range all {
		all[i] = int32(i)
	}
	for calls := 1; ; calls++ {
		p.SetBudget(steps)
		_, done := p.LoseBins(0, all, func(int32) bool { return false })
		if spent := steps - p.StepsLeft(); spent > 2*steps {
			t.Fatalf("call %d spent %d steps of %d", calls, spent, steps)
		}
		if done {
			if calls < 3 {
				t.Errorf("all was moved in %d calls", calls)
			}
			break
		}
		if calls > 1000 {
			t.Fatal("it does not end")
		}
		all = slices.DeleteFunc(all, func(b int32) bool { return !p.HasWork(b) })
	}
	p.Scan(func(x *PlannedTask) {
		if x.Spot.Bin >= 0 && x.Spot.Bin < lost {
			t.Errorf("%v is planned on lost bin %d", x.Key, x.Spot.Bin)
		}
	})
}
