package simcluster

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/drover-run/drover/jobspec"
)

// plan is everything that a seed decides: the cluster, the jobs and the faults.
type plan struct {
	seed      uint64
	focus     string        // what a small plan is about; "" for a large one
	window    time.Duration // in which jobs are submitted and, of a large plan, faults begin
	widest    int           // the most tasks of a stage of a group
	snapshots uint64        // how many entries of the log a snapshot comes after
	servers   int
	machines  int
	election  time.Duration // how long a follower waits for its leader
	reports   time.Duration // between two of a node
	scheduler string
	chosen    string        // the scheduler that an operator sets at chosenAt; "" for none
	chosenAt  time.Duration // from the beginning
	speculate bool          // tasks that lag get a second attempt
	secure    bool          // nodes, users and raft speak over TLS with the coordinators, which costs half as much again
	forget    bool          // in the end: see checkKeys
	restarts  bool          // the coordinators start again before the end is checked
	jobs      []plannedJob
	faults    []plannedFault
	restore   *plannedRestore // nil for none
	gone      string          // a node that nobody reaches until all jobs have ended; "" for none
	goneAt    time.Duration   // from then on
}

// The largest cluster.
const (
	maxServers  = 3
	maxMachines = 3
)

func serverName(i int) string { return fmt.Sprint("c", i+1) }

func machineName(i int) string { return fmt.Sprint("n", i+1) }

type plannedJob struct {
	at      time.Duration
	spec    *jobspec.Job
	fails   bool          // a task fails in every attempt
	againAt time.Duration // when its user submits it again under the same key; 0: never
	stopAt  time.Duration // when its user stops it; 0: never
	stopsAt string        // the kind of its event at which its user stops it; "": none

	stopsAtOnce bool // its user stops it before it can be placed: see stopWhileHeld

	file      string // of each of its tasks, which its user uploads first; "": none
	losesDisk bool   // the leader that took the file loses its disk before the job is submitted

	wordCount *wordCount // nil for a job of group stages
}

// tasks returns how many tasks the job has.
func (j plannedJob) tasks() (n int) {
	for _, s := range j.spec.Stages {
		n += s.Tasks
	}
	if j.wordCount != nil {
		n += len(j.wordCount.texts)
	}
	return n
}

type plannedFault struct {
	at, length time.Duration
	kind       faultKind
	a, b       string // parties
	n          int    // meaning depends on kind
}

func (f plannedFault) String() string {
	return fmt.Sprintf("%s %s %s %d for %s", f.kind, f.a, f.b, f.n, f.length.Round(time.Millisecond))
}

type faultKind int

// The faults.
const (
	crashServer   faultKind = iota + 1 // its process dies, and starts again
	loseServer                         // its machine dies without a word, and starts again
	crashAtStep                        // it dies at its n-th proposal from then on, before or after it
	isolateServer                      // from everybody
	splitServer                        // from the other servers alone
	muteServer                         // one way: nobody hears it
	deafenServer                       // one way: it hears nobody
	transfer                           // of the leadership
	crashDaemon                        // the node's daemon dies, and starts again; its tasks run on
	loseDaemon                         // the same without a word: connections hang
	isolateNode                        // from all servers
	muteNode
	deafenNode
	reset      // of the connections between two parties, n times
	slow       // what one party sends to another is late
	engineDown // the node's container engine does not answer
	engineLie  // it does what it is asked, and its answer is lost
	stepClock  // of a coordinator, ahead or back, and back again at the end
	fillDisk   // of a coordinator: its log fails, before or after a write; then it is started again
	lateAnswer // what a node is told is late; then nobody hears the node
	suspend    // a user suspends the tasks of a job, and resumes them, perhaps on a node
	drain      // of a node, with a deadline after which its tasks move
	lastFault

	// These are drawn with others than random instants and parties: see addRare.
	splitNode   // a node from the other nodes alone, which cannot fetch from it
	stallLeader // the loop of the leader stands still while another server leads
	staleDisk   // a coordinator runs on an old copy of its disk

	// These are drawn apart too: see addHardware.
	cutPower     // of a node's machine: its programs end, and what its daemon has not synced is lost
	fillNodeDisk // of a node: its daemon's store fails, before or after a write, until there is room
	loseDisk     // of a coordinator, one of three: it starts again with an empty one
	loseVoter    // one of two coordinators that have an entry loses its disk, while the other is cut off
	damageDisk   // of a coordinator: its power is cut, and a file of its raft store or of a snapshot is damaged
	tearWrite    // of a coordinator: its power is cut while a page of its raft store is written
	stepNodeClock

	// These begin at a write of a node's store: see addNodeWrites.
	cutPowerAtWrite
	fillDiskAtWrite
	endOfFaults
)

func (k faultKind) String() string {
	names := [...]string{crashServer: "crash", loseServer: "lose", crashAtStep: "crash at a step", isolateServer: "isolate", splitServer: "split", muteServer: "mute", deafenServer: "deafen",
		transfer: "transfer to", crashDaemon: "crash the daemon", loseDaemon: "lose the daemon", isolateNode: "isolate node", muteNode: "mute node", deafenNode: "deafen node",
		reset: "reset", slow: "slow", engineDown: "engine down", engineLie: "engine lies", stepClock: "step the clock of", fillDisk: "fill the disk of", suspend: "suspend the tasks of", drain: "drain", lateAnswer: "late answers to",
		splitNode: "split node", stallLeader: "stall the leader", staleDisk: "old disk of", cutPower: "cut the power of", fillNodeDisk: "fill the disk of node", loseDisk: "lose the disk of", loseVoter: "lose the disk of a voter", damageDisk: "damage the disk of", tearWrite: "tear a write of", stepNodeClock: "step the clock of node",
		cutPowerAtWrite: "cut the power at a write", fillDiskAtWrite: "fill the disk at a write"}
	if k < crashServer || int(k) >= len(names) || names[k] == "" {
		return "invalid fault"
	}
	return names[k]
}

// simulationStart is when the time of every simulation begins.
var simulationStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// faultTime is how long faults begin to happen.
const faultTime = 50 * time.Second

// maxElection is the longest time that a follower waits for its leader.
const maxElection = 3 * time.Second

// instant draws when something begins.
func (p *plan) instant(r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(int64(p.window)))
}

// between returns a duration; short ones are as frequent as long ones (its
// logarithm is uniform).
func between(r *rand.Rand, shortest, longest time.Duration) time.Duration {
	d := float64(shortest) * math.Pow(float64(longest)/float64(shortest), r.Float64())
	return time.Duration(d).Round(time.Millisecond)
}

// newPlan returns the plan of a seed. Small ones find most for the same processor time; large ones have what nobody
// thought of when the foci were chosen.
func newPlan(seed uint64, size planSize) *plan {
	var p *plan
	if size == largePlan || size.isMixed() && rand.New(rand.NewPCG(seed, 4)).IntN(smallPlans) == 0 {
		p = newLargePlan(seed)
	} else {
		p = newSmallPlan(seed)
	}
	p.addRestore(size == restorePlan)
	return p
}

func newLargePlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := &plan{seed: seed, window: faultTime, widest: 3, snapshots: 128}
	p.drawCluster(r)
	if r.IntN(3) == 0 {
		p.gone, p.goneAt = machineName(r.IntN(p.machines)), p.instant(r)
	}
	p.secure, p.forget, p.restarts = seed%8 == 0, seed%4 == 1, seed%4 == 3
	for i := range 8 + r.IntN(8) {
		p.jobs = append(p.jobs, p.newJob(r, i))
	}
	for range 5 + r.IntN(12) {
		p.faults = append(p.faults, p.newFault(r))
	}
	p.addWordCounts()
	p.addRare()
	p.addGuarantees()
	p.addUploads()
	p.addHardware()
	p.addNodeWrites()
	return p
}

// addGuarantees has one of three plans run a scheduler that makes reservations, with jobs of projects and with bounds,
// of which some are stopped early. In some of these an operator sets another scheduler while jobs may run.
func (p *plan) addGuarantees() {
	r := rand.New(rand.NewPCG(p.seed, 6))
	if r.IntN(3) > 0 {
		return
	}
	reserving := []string{"two_tier", "two_tier", "conservative", "3dsf", "pdsonqueue"}
	p.scheduler = reserving[r.IntN(len(reserving))]
	for i := range p.jobs {
		j := &p.jobs[i]
		if r.IntN(4) > 0 {
			j.spec.RuntimeBound = jobspec.Duration(between(r, lease/3, 20*lease))
		}
		if r.IntN(2) == 0 {
			j.spec.Project = fmt.Sprint("p", r.IntN(2))
		}
		if j.stopAt == 0 && r.IntN(4) == 0 {
			j.stopAt = max(j.at, j.againAt) + between(r, time.Millisecond, lease)
		}
	}
	if r.IntN(4) == 0 {
		p.chosen, p.chosenAt = append(reserving, "fifo", "las_mq")[r.IntN(len(reserving)+2)], p.whileAJobRuns(r)
	}
}

// drawCluster draws the parties and how they are configured.
func (p *plan) drawCluster(r *rand.Rand) {
	p.servers, p.machines, p.scheduler = maxServers, maxMachines-1+r.IntN(2), []string{"fifo", "fair", "easy", "las_mq", "3dsf"}[r.IntN(5)]
	if r.IntN(3) == 0 {
		p.servers = 1
	}
	p.election = time.Duration(1+r.IntN(int(maxElection/time.Second))) * time.Second
	p.reports = lease / 3
	if r.IntN(4) == 0 {
		p.reports = lease / 5
	}
}

// newFault draws a fault of any kind.
func (p *plan) newFault(r *rand.Rand) plannedFault {
	f := plannedFault{at: p.instant(r), kind: crashServer + faultKind(r.IntN(int(lastFault-crashServer))), n: 1 + r.IntN(6)}
	if r.IntN(4) == 0 { // so that other faults meet what is suspended or moves
		f.kind = suspend + faultKind(r.IntN(int(lastFault-suspend)))
	}
	p.drawParties(r, &f, 4*lease)
	return f
}

// drawParties draws how long a fault takes and whom it meets.
func (p *plan) drawParties(r *rand.Rand, f *plannedFault, longest time.Duration) {
	f.length = between(r, 50*time.Millisecond, longest)
	if r.IntN(3) == 0 { // about a lease
		f.length = lease/2 + time.Duration(r.Int64N(int64(2*lease)))
	}
	if f.kind == crashAtStep { // it waits for proposals
		f.length = max(f.length, 3*time.Second)
	}
	f.a, f.b = serverName(r.IntN(p.servers)), machineName(r.IntN(p.machines))
	switch f.kind {
	case crashServer, loseServer, crashAtStep, isolateServer, splitServer, muteServer, deafenServer, transfer, stepClock, fillDisk:
		f.b = ""
	case crashDaemon, loseDaemon, isolateNode, muteNode, deafenNode, engineDown, drain, lateAnswer, splitNode:
		f.a, f.b = f.b, ""
	case engineLie:
		f.a, f.b, f.n = f.b, "", 1+r.IntN(len(lies))
	case suspend:
		j := p.jobs[r.IntN(len(p.jobs))]
		f.a, f.at = j.spec.Name, j.at+between(r, 50*time.Millisecond, 4*lease) // while it may run
		if r.IntN(2) == 0 {
			f.b = ""
		}
	case reset, slow:
		parties := []string{"user"}
		for i := range p.servers {
			parties = append(parties, serverName(i))
		}
		for i := range p.machines {
			parties = append(parties, machineName(i))
		}
		if r.IntN(3) == 0 {
			f.b = parties[r.IntN(len(parties))]
		}
		if r.IntN(2) == 0 {
			f.a, f.b = f.b, f.a
		}
	default:
		panic("fault without parties: " + f.kind.String())
	}
}

// addWordCounts adds jobs of map and reduce stages, and faults of which some suspend their tasks.
func (p *plan) addWordCounts() {
	r := rand.New(rand.NewPCG(p.seed, 2))
	for i := range r.IntN(4) {
		j := p.newWordCount(r, i, 8)
		p.jobs = append(p.jobs, j)
		p.speculate = p.speculate || j.wordCount.twins
		if r.IntN(3) == 0 {
			p.faults = append(p.faults, plannedFault{kind: suspend, a: j.spec.Name, at: j.at + between(r, 50*time.Millisecond, 4*lease), length: between(r, 50*time.Millisecond, 4*lease), n: 1 + r.IntN(6)})
		}
	}
}

func (p *plan) newJob(r *rand.Rand, i int) plannedJob {
	j := plannedJob{at: p.instant(r), spec: &jobspec.Job{Name: fmt.Sprint("j", i)}}
	exclusive := r.IntN(2) == 0
	failures := 0
	switch r.IntN(6) {
	case 0:
		failures = 1
	case 1:
		failures, j.fails = 1000, true
	case 2:
		if r.IntN(2) == 0 {
			j.stopAt = j.at + between(r, 50*time.Millisecond, 4*lease)
		}
	}
	if r.IntN(3) == 0 {
		j.againAt = j.at + between(r, time.Millisecond, 8*lease)
	}
	if r.IntN(4) == 0 {
		due := simulationStart.Add(j.at + between(r, lease/3, 20*lease))
		j.spec.Deadline = &due
	}
	longest := 4 * lease / 3
	if exclusive { // longer than a lease
		longest = 4 * lease
	}
	before := 0
	for s := range 1 + r.IntN(2) {
		x := jobspec.Stage{Name: fmt.Sprint("s", s), Kind: jobspec.KindGroup, Tasks: 1 + r.IntN(p.widest), Exclusive: exclusive,
			Command:   command(between(r, longest/300, longest), failures, exclusive, before),
			Resources: jobspec.Resources{CPU: int64(500 * (1 + r.IntN(4))), Memory: 64 << 20, IO: 1 << 20}}
		if s > 0 {
			x.After = []string{"s0"}
		}
		before = x.Tasks
		j.spec.Stages = append(j.spec.Stages, x)
	}
	return j
}

func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s: %d coordinators, %d nodes, scheduler %s, elections after %s, reports every %s, TLS %v, speculative attempts %v\n", p.seed, cmp.Or(p.focus, "large"), p.servers, p.machines, p.scheduler, p.election, p.reports, p.secure, p.speculate)
	if p.chosen != "" {
		fmt.Fprintf(&b, "  %8s an operator sets %s\n", p.chosenAt.Round(time.Millisecond), p.chosen)
	}
	for _, j := range p.jobs {
		fmt.Fprintf(&b, "  %8s submit %s:", j.at.Round(time.Millisecond), j.spec.Name)
		for _, s := range j.spec.Stages {
			fmt.Fprintf(&b, " %d x %v", s.Tasks, s.Command)
		}
		if w := j.wordCount; w != nil {
			fmt.Fprintf(&b, " words of %d files, maps %s, reduces %s", len(w.texts), w.mapTime, w.partTime)
			if w.failing != "" {
				fmt.Fprintf(&b, ", first attempts of %s fail", w.failing)
			}
			if w.twins {
				b.WriteString(", twins")
			}
			if w.full {
				b.WriteString(", suspended when a map is done")
			}
			if w.lateLoss {
				b.WriteString(", outputs are lost, and a node says so late")
			}
			if w.breaks {
				b.WriteString(", the leader crashes when the result is there")
			}
		}
		if j.againAt > 0 {
			fmt.Fprintf(&b, ", again at %s", j.againAt.Round(time.Millisecond))
		}
		if j.spec.Deadline != nil {
			fmt.Fprintf(&b, ", due at %s", j.spec.Deadline.Sub(simulationStart).Round(time.Millisecond))
		}
		if j.spec.Project != "" {
			fmt.Fprintf(&b, ", of project %s", j.spec.Project)
		}
		if j.spec.RuntimeBound > 0 {
			fmt.Fprintf(&b, ", at most %s", time.Duration(j.spec.RuntimeBound))
		}
		if j.stopAt > 0 {
			fmt.Fprintf(&b, ", stop at %s", j.stopAt.Round(time.Millisecond))
		}
		if j.stopsAt != "" {
			fmt.Fprintf(&b, ", stop at %s", j.stopsAt)
		}
		if j.stopsAtOnce {
			b.WriteString(", stop at once")
		}
		if j.file != "" {
			fmt.Fprintf(&b, ", with a file of %d bytes", len(j.file))
		}
		if j.losesDisk {
			b.WriteString(", whose leader loses its disk")
		}
		b.WriteString("\n")
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "  %8s %s\n", f.at.Round(time.Millisecond), f)
	}
	if x := p.restore; x != nil {
		fmt.Fprintf(&b, "  %8s an archive is saved\n  %8s all coordinators are lost, %s later %s is restored, %s later the others join\n", x.savedAt.Round(time.Millisecond), x.at.Round(time.Millisecond), x.down, serverName(x.server), x.join)
	}
	if p.gone != "" {
		fmt.Fprintf(&b, "  %8s %s is gone\n", p.goneAt.Round(time.Millisecond), p.gone)
	}
	return b.String()
}
