package simcluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/replica"
)

// The faults of this file take what a random one almost never does: that several things happen in a certain order, close
// to each other. They have a source of their own, so that the rest of a plan is the same without them.

// addRare adds such faults.
func (p *plan) addRare() {
	r := rand.New(rand.NewPCG(p.seed, 3))
	switch {
	case p.servers > 1 && r.IntN(4) == 0:
		p.addStalledLeader(r)
	case p.servers == 1 && r.IntN(4) == 0:
		p.addStaleDisk(r)
	}
	for i := range p.jobs {
		j := &p.jobs[i]
		if j.wordCount == nil && p.servers > 1 && j.stopAt == 0 && r.IntN(8) == 0 {
			j.stopsAtOnce = true
		}
		if j.wordCount != nil && r.IntN(4) == 0 {
			p.faults = append(p.faults, plannedFault{kind: splitNode, a: machineName(r.IntN(p.machines)), at: j.at + between(r, lease/20, 2*lease), length: between(r, lease/5, 2*lease)})
		}
	}
}

// addStalledLeader adds a leader that stands still when there is something to decide.
func (p *plan) addStalledLeader(r *rand.Rand) {
	first := p.jobs[r.IntN(len(p.jobs))].at
	p.faults = append(p.faults, plannedFault{kind: stallLeader, at: max(0, first-100*time.Millisecond), length: between(r, 50*time.Millisecond, time.Second)})
}

// addStaleDisk adds a coordinator on an old copy of its disk.
func (p *plan) addStaleDisk(r *rand.Rand) {
	f := plannedFault{kind: staleDisk, a: serverName(0), at: p.instant(r), length: between(r, lease/2, 2*lease)}
	p.faults = slices.DeleteFunc(p.faults, func(o plannedFault) bool { // they would let users reach it, or start the other one
		return o.at < f.at+2*staleRuns+f.length && o.at+max(o.length, lease)+3*lease > f.at
	})
	p.faults = append(p.faults, f)
}

// staleRuns is how long each of the two runs takes by which a coordinator's terms get ahead of those of a copy of its disk.
const staleRuns = time.Second + maxElection

// staleDisk returns the steps of a coordinator that is started from an old copy of its disk, whose terms the nodes
// have seen pass: they must not believe it. Users do not reach it, and it is replaced again by the disk that it was copied from.
func (c *cluster) staleDisk(f plannedFault) []step {
	s := c.server(f.a)
	away := func() { c.net.isolate("user", f.a) }
	copied, present := "", ""
	return []step{
		{f.at, func() { // a crash copies what it leaves
			c.log("fault: %s", f)
			s.restart()
			copied = s.folder()
			s.crash(false)
			s.restart()
		}},
		{f.at + staleRuns, func() { s.crash(false); s.restart() }},
		{f.at + 2*staleRuns, func() {
			s.crash(false)
			present = s.replaceFolder(copied)
			c.log("%s starts from an old copy", s.id)
			away()
			s.restart()
		}},
		{f.at + 2*staleRuns + f.length, func() {
			c.log("end of: %s", f)
			s.crash(false)
			c.net.mend("user")
			s.replaceFolder(present)
			s.restart()
		}},
	}
}

// stallLeader has the loop of the leader stand still right before it proposes what it has decided, as a process does that
// the machine gives no time, while another server leads for a while.
func (c *cluster) stallLeader(f plannedFault) {
	leader := c.leader()
	s := c.server(leader)
	if s == nil {
		return
	}
	others := slices.DeleteFunc(c.serverNames(), func(id string) bool { return id == leader })
	held, goOn := s.stall.begin()
	defer goOn()
	select {
	case <-held:
	case <-time.After(lease):
		return
	}
	c.transferTo(others[0])
	time.Sleep(f.length)
	c.transferTo(leader)
}

// stall holds up the proposals of a server's leading loop.
type stall struct {
	mu     sync.Mutex
	passed chan struct{} // nil while nothing is held up
	held   chan struct{} // has a value when something is
}

func (s *stall) begin() (held <-chan struct{}, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := make(chan struct{})
	s.passed, s.held = passed, make(chan struct{}, 1)
	return s.held, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.passed == passed {
			s.passed = nil
		}
		close(passed)
	}
}

// await waits as long as proposals are held up.
func (s *stall) await(p replica.Point) {
	s.mu.Lock()
	passed, held := s.passed, s.held
	s.mu.Unlock()
	if passed != nil && p == replica.Before && isLeadingLoop() {
		select {
		case held <- struct{}{}:
		default:
		}
		<-passed
	}
}

// isLeadingLoop reports whether a leader's loop calls to commit a decision of the scheduler, or to give a node up. Only these
// may be held up: others propose with a mutex held, for which virtual time does not pass.
func isLeadingLoop() bool {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "coordinator.(*leader).commit") || strings.Contains(f.Function, "coordinator.(*leader).expire") {
			return true
		}
		if !more {
			return false
		}
	}
}

// stopWhileHeld stops a job that was just accepted while the leader reaches no other server: that it is placed and that it
// is stopped come into force at one instant, so that its node hears of an attempt only that it is to go.
func (c *cluster) stopWhileHeld(p plannedJob, leader string) {
	if leader == "" {
		c.stop(p)
		return
	}
	c.net.isolate(leader, c.serverNames()...)
	time.AfterFunc(c.election/4, func() { c.net.mend(leader) })
	time.Sleep(50 * time.Millisecond) // it is placed, as far as the leader is concerned
	c.stop(p)
}

// lostOutputs has the map outputs that reduces reported as lost, for checkLost.
type lostOutputs struct {
	mu       sync.Mutex
	reported map[string]bool
}

// note takes note of what a node reports.
func (l *lostOutputs) note(job uint64, o *droverv1.MapOutput) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reported[outputName(job, o.Task, o.Attempt)] = true
}

func outputName(job uint64, task, attempt int32) string {
	return fmt.Sprintf("%d: %d.%d", job, task, attempt)
}

// checkLost checks that an output that counts as lost by the word of a reduce was named by one.
func (c *cluster) checkLost(job uint64, e *droverv1.Event) {
	if e.Kind != "task.output_lost" || !strings.Contains(e.Text, "could not fetch it") {
		return
	}
	var task, attempt, run int32
	if _, err := fmt.Sscanf(filepath.Base(e.Task), "%d.%d.%d", &task, &attempt, &run); err != nil {
		c.violated("event of task %q: %v", e.Task, err)
	}
	c.lost.mu.Lock()
	named := c.lost.reported[outputName(job, task, attempt)]
	c.lost.mu.Unlock()
	if !named {
		c.violated("the output of %s of %s is lost, and no reduce has said so: %s", e.Task, e.Job, e.Text)
	}
}

// checkDropped checks why an action was dropped that a leader's scheduler decided on. The log is the leader's: what it
// knows of tasks and stages nobody else changes before its decision is applied.
func (c *cluster) checkDropped(server, why string) {
	switch why {
	case "the task is not pending":
		if c.restores.happened() { // a run that a node has reported meanwhile is its attempt
			return
		}
		fallthrough
	case "an earlier stage is not done":
		c.violated("%s decides what its own log refuses: %s", server, why)
	}
}

// checkDecider checks that what a leader decided came into force in its term or not at all.
func (c *cluster) checkDecider(l *raft.Log) {
	if !c.effects[l.Index] || l.Type != raft.LogCommand {
		return
	}
	e := &droverv1.Entry{}
	if err := proto.Unmarshal(l.Data, e); err != nil {
		c.violated("entry %d: %v", l.Index, err)
	} else if e.GetTerm() != 0 && e.GetTerm() != l.Term {
		c.violated("entry %d was decided in term %d and came into force in term %d", l.Index, e.GetTerm(), l.Term)
	}
}

// disturb does to a job that counts words what its plan says.
func (c *cluster) disturb(job string, w *wordCount) {
	switch {
	case w.full:
		if c.awaitEvent(job, "task.succeeded") == nil {
			return
		}
		c.suspend(job, droverv1.Level_LEVEL_CHECKPOINTED)
		time.Sleep(lease)
		c.setLevels(job, droverv1.Level_LEVEL_RUNNING, "")
	case w.breaks:
		leader := c.server(c.leader())
		if leader == nil || c.awaitEvent(job, "job.committing") == nil || !c.awaitResult(job) {
			return
		}
		leader.crash(false)
		time.Sleep(time.Second)
		leader.restart()
	case w.lateLoss:
		e := c.awaitEvent(job, "task.succeeded")
		if e == nil {
			return
		}
		// Nobody fetches from the node of that map, and one of the two others says so late.
		late := slices.DeleteFunc(c.machineNames(), func(name string) bool { return name == e.Node })[0]
		c.log("no node reaches %s, and %s is slow", e.Node, late)
		for step := time.Duration(0); step < 4*lease && !c.hasLost(job); step += lease / 25 { // the end of another fault mends these links too
			c.net.isolate(e.Node, c.machineNames()...)
			for _, s := range c.serverNames() {
				c.net.slowLink(late, s, lease/4)
			}
			time.Sleep(lease / 25)
		}
		time.Sleep(lease / 2) // the late one says so
		c.net.mend(e.Node)
		c.net.mend(late)
	}
}

// awaitResult waits until a file of a job's result has its name, which a node takes an instant for, and reports whether
// one has: the node's answer is then still under way.
func (c *cluster) awaitResult(job string) bool {
	for range 400 {
		if files, err := os.ReadDir(c.outputOf(job)); err == nil && len(files) > 0 {
			return true
		}
		time.Sleep(50 * time.Microsecond)
	}
	return false
}

// hasLost reports whether a reduce of a job has reported an output as lost, which takes it six tries.
func (c *cluster) hasLost(job string) bool {
	c.mu.Lock()
	prefix := fmt.Sprintf("%d: ", c.accepted[job])
	c.mu.Unlock()
	c.lost.mu.Lock()
	defer c.lost.mu.Unlock()
	for name := range c.lost.reported {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
