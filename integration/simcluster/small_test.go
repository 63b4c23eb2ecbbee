package simcluster

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Most bugs take two or three things that meet: a task that runs and a node that nobody hears, a result that is
// published and a leader that dies. A large plan has many of each, and most never meet. A small one has one or two jobs and
// the faults of one focus, at instants at which the jobs may run.

// focus is what a small plan is about.
type focus struct {
	name    string
	weight  int                   // how many plans of all
	alone   int                   // of 8 plans so many have one server, the others three
	jobs    int                   // at most
	suits   func(plannedJob) bool // which jobs; nil for any
	words   bool                  // jobs that count words
	kinds   []faultKind           // of the first fault
	gone    bool                  // one of three plans has a node that nobody reaches until all jobs have ended
	ordered bool                  // several things in a certain order: see addOrdered
}

// Kinds of faults that meet the same part of a cluster.
var (
	nodeFaults    = []faultKind{isolateNode, muteNode, deafenNode, crashDaemon, loseDaemon, lateAnswer}
	serverCrashes = []faultKind{crashServer, loseServer, crashAtStep}
	serverFaults  = slices.Concat(serverCrashes, []faultKind{isolateServer, splitServer, muteServer, deafenServer, transfer, fillDisk})
	userFaults    = []faultKind{suspend, drain}
	otherFaults   = []faultKind{reset, slow, engineDown, engineLie, stepClock}
)

// foci are those of small plans.
var foci = []focus{
	{name: "leases", weight: 4, alone: 7, jobs: 2, suits: isLongExclusive, kinds: nodeFaults, gone: true},
	{name: "servers", weight: 3, alone: 4, jobs: 2, kinds: serverFaults},
	{name: "words", weight: 4, alone: 7, jobs: 1, words: true, kinds: slices.Concat(nodeFaults, serverCrashes, []faultKind{splitNode}), gone: true},
	{name: "moves", weight: 2, alone: 7, jobs: 2, kinds: userFaults},
	{name: "others", weight: 1, alone: 7, jobs: 2, kinds: otherFaults},
	{name: "order", weight: 2, alone: 4, jobs: 2, kinds: nodeFaults, ordered: true},
}

// smallPlans is how many plans there are for each large one.
const smallPlans = 32

// isLongExclusive reports whether a job has a task that may still run when its node's lease has ended.
func isLongExclusive(j plannedJob) bool {
	s := j.spec.Stages[0]
	d, err := time.ParseDuration(s.Command[1])
	return err == nil && s.Exclusive && d > lease/2 && !j.fails
}

func newSmallPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 5))
	f := drawFocus(r)
	p := &plan{seed: seed, focus: f.name, window: 2 * time.Second, widest: 2, snapshots: 16 << r.IntN(4)}
	p.drawCluster(r)
	p.servers = maxServers
	if r.IntN(8) < f.alone {
		p.servers = 1
	}
	if f.words {
		p.machines = maxMachines // some trouble takes three
	}
	p.secure, p.forget, p.restarts = r.IntN(32) == 0, r.IntN(8) == 0, r.IntN(4) == 0
	p.drawSmallJobs(r, f)
	p.faults = append(p.faults, p.newSmallFault(r, f.kinds))
	if r.IntN(2) == 0 {
		second := [][]faultKind{f.kinds, nodeFaults, serverFaults, userFaults, otherFaults}
		p.faults = append(p.faults, p.newSmallFault(r, second[r.IntN(len(second))]))
	}
	if f.gone && r.IntN(3) == 0 {
		p.gone, p.goneAt = machineName(r.IntN(p.machines)), p.whileAJobRuns(r)
	}
	if f.ordered {
		p.addOrdered(r)
	}
	p.addGuarantees()
	p.addUploads()
	p.addHardware()
	p.addNodeWrites()
	return p
}

func drawFocus(r *rand.Rand) focus {
	all := 0
	for _, f := range foci {
		all += f.weight
	}
	n := r.IntN(all)
	for _, f := range foci {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("no focus")
}

// drawSmallJobs draws jobs that suit a focus.
func (p *plan) drawSmallJobs(r *rand.Rand, f focus) {
	for i := range 1 + r.IntN(f.jobs) {
		j := p.newJob(r, i)
		for tries := 0; f.suits != nil && !f.suits(j) && tries < 100; tries++ {
			j = p.newJob(r, i)
		}
		if f.words {
			j = p.newWordCount(r, i, 6)
			p.speculate = p.speculate || j.wordCount.twins
		}
		p.jobs = append(p.jobs, j)
	}
}

// whileAJobRuns draws an instant at which a job may run.
func (p *plan) whileAJobRuns(r *rand.Rand) time.Duration {
	return p.jobs[r.IntN(len(p.jobs))].at + between(r, 50*time.Millisecond, 2*lease)
}

func (p *plan) newSmallFault(r *rand.Rand, kinds []faultKind) plannedFault {
	f := plannedFault{kind: kinds[r.IntN(len(kinds))], n: 1 + r.IntN(6), at: p.whileAJobRuns(r)}
	p.drawParties(r, &f, 2*lease)
	return f
}

// addOrdered adds what takes several things in a certain order: see addRare.
func (p *plan) addOrdered(r *rand.Rand) {
	switch {
	case p.servers == 1:
		p.addStaleDisk(r)
	case r.IntN(2) == 0:
		p.addStalledLeader(r)
	default:
		j := &p.jobs[r.IntN(len(p.jobs))]
		j.stopsAtOnce, j.stopAt = true, 0
	}
}

// troublesOfPlans are what a plan may have besides faults.
var troublesOfPlans = []string{"failing count", "failing sum", "failing nothing", "twins", "full", "late loss", "breaks", "stops at once", "due", "again",
	"stops when committing", "gone", "forget", "restarts", "TLS", "file", "loses disk", "restore"}

// TestSmallPlansReachEverything draws plans: each kind of fault and each trouble that a large plan may have is in some
// small one too, and few plans are large.
func TestSmallPlansReachEverything(t *testing.T) {
	const plans = 4000
	kinds, troubles, large := map[faultKind]bool{}, map[string]bool{}, 0
	has := func(what string, there bool) {
		if !slices.Contains(troublesOfPlans, what) {
			t.Fatalf("nothing wants plans with: %s", what)
		}
		troubles[what] = troubles[what] || there
	}
	for seed := range uint64(plans) {
		if newPlan(seed, mixedPlans).focus == "" {
			large++
		}
		p := newPlan(seed, smallPlan)
		for _, f := range p.faults {
			kinds[f.kind] = true
		}
		for _, j := range p.jobs {
			if p.focus == "leases" && !isLongExclusive(j) {
				t.Errorf("seed %d: job %s of a plan about leases has no long exclusive task", seed, j.spec.Name)
			}
			if w := j.wordCount; w != nil {
				has("failing "+cmp.Or(w.failing, "nothing"), true)
				has("twins", w.twins && p.speculate)
				has("full", w.full)
				has("late loss", w.lateLoss)
				has("breaks", w.breaks)
			}
			has("stops at once", j.stopsAtOnce)
			has("due", j.spec.Deadline != nil)
			has("again", j.againAt > 0)
			has("file", j.file != "")
			has("loses disk", j.losesDisk)
			has("stops when committing", j.stopsAt != "")
		}
		has("gone", p.gone != "")
		has("restore", p.restore != nil)
		has("forget", p.forget)
		has("restarts", p.restarts)
		has("TLS", p.secure)
	}
	for kind := crashServer; kind < endOfFaults; kind++ {
		if kind != lastFault && !kinds[kind] {
			t.Errorf("no small plan of %d has the fault %s", plans, kind)
		}
	}
	for _, what := range troublesOfPlans {
		if !troubles[what] {
			t.Errorf("no small plan of %d has: %s", plans, what)
		}
	}
	if want := plans / smallPlans; large < want/2 || large > 2*want {
		t.Errorf("%d of %d plans are large, want about %d", large, plans, want)
	}
}
