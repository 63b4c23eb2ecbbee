package simcluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime/fake"
)

// step is something that the simulation does at an instant.
type step struct {
	at time.Duration
	do func()
}

// run executes the plan in virtual time, then ends all faults but the absence of a
// node.
func (c *cluster) run(p *plan) {
	var steps []step
	for _, j := range p.jobs {
		steps = append(steps, step{j.at, func() { c.wg.Go(func() { c.submit(j) }) }})
	}
	for _, f := range p.faults {
		steps = append(steps, c.stepsOf(f)...)
	}
	if p.chosen != "" {
		steps = append(steps, step{p.chosenAt, func() { c.wg.Go(func() { c.setScheduler(p.chosen) }) }})
	}
	steps = append(steps, c.restores.steps()...)
	leave := func() {
		if p.gone != "" {
			c.log("%s is gone", p.gone)
			c.net.isolate(p.gone, c.parties()...)
		}
	}
	steps = append(steps, step{p.goneAt, leave})
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	for _, s := range steps {
		time.Sleep(time.Until(c.began.Add(s.at)))
		s.do()
	}
	c.log("the end of all faults")
	c.net.mend("")
	leave()
	for _, m := range c.machines {
		m.engine.Down(false)
		m.engine.Heal()
	}
}

func (c *cluster) parties() []string {
	all := []string{"user"}
	for _, s := range c.servers {
		all = append(all, s.id)
	}
	for _, m := range c.machines {
		all = append(all, m.name)
	}
	return all
}

func (c *cluster) serverNames() (all []string) {
	for _, s := range c.servers {
		all = append(all, s.id)
	}
	return all
}

func (c *cluster) machineNames() (all []string) {
	for _, m := range c.machines {
		all = append(all, m.name)
	}
	return all
}

func (c *cluster) server(id string) *server {
	for _, s := range c.servers {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (c *cluster) machine(name string) *machine {
	for _, m := range c.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// stepsOf returns the beginning and the end of a fault.
func (c *cluster) stepsOf(f plannedFault) []step {
	s, m := c.server(f.a), c.machine(f.a)
	begin, end := func() {}, func() { c.net.mend(f.a) }
	switch f.kind {
	case crashServer, loseServer:
		begin, end = func() { s.crash(f.kind == loseServer) }, s.restart
	case crashAtStep:
		begin, end = func() { s.arm(f.n) }, s.restart
	case isolateServer:
		begin = func() { c.net.isolate(f.a, c.parties()...) }
	case splitServer:
		begin = func() { c.net.isolate(f.a, c.serverNames()...) }
	case muteServer, muteNode:
		begin = func() { c.oneWay([]string{f.a}, c.parties()) }
	case deafenServer, deafenNode:
		begin = func() { c.oneWay(c.parties(), []string{f.a}) }
	case isolateNode:
		begin = func() { c.net.isolate(f.a, c.parties()...) }
	case transfer:
		begin, end = func() { c.wg.Go(func() { c.transferTo(f.a) }) }, func() {}
	case crashDaemon, loseDaemon:
		begin, end = func() { m.crash(f.kind == loseDaemon) }, m.restart
	case reset:
		var steps []step
		for i := range f.n {
			steps = append(steps, step{f.at + f.length*time.Duration(i)/time.Duration(f.n), func() { c.log("fault: %s", f); c.net.reset(f.a, f.b) }})
		}
		return steps
	case slow:
		begin = func() { c.net.slowLink(f.a, f.b, time.Duration(f.n)*lease/20) }
	case engineDown:
		begin, end = func() { m.engine.Down(true) }, func() { m.engine.Down(false) }
	case engineLie:
		begin = func() {
			m.engine.Inject(fake.Fault{Verb: lies[f.n-1], Err: fault.New(fault.Unavailable, "its answer was lost"), ActFirst: true})
		}
		end = m.engine.Heal
	case stepClock:
		begin, end = func() { s.clock.Store(int64(clockSteps[f.n-1])) }, func() { s.clock.Store(0) }
	case fillDisk:
		begin = func() { s.filled.Store(true); s.full.Store(int64(1 + f.n%2)) }
		end = func() {
			s.full.Store(0)
			s.crash(false)
			s.restart()
		}
	case suspend:
		begin = func() { c.wg.Go(func() { c.suspend(f.a, levels[1+f.n%3]) }) }
		end = func() { c.wg.Go(func() { c.setLevels(f.a, droverv1.Level_LEVEL_RUNNING, f.b) }) }
	case splitNode:
		begin = func() { c.net.isolate(f.a, c.machineNames()...) }
	case stallLeader:
		begin, end = func() { c.wg.Go(func() { c.stallLeader(f) }) }, func() {}
	case staleDisk:
		return c.staleDisk(f)
	case drain:
		begin = func() { c.drained[f.a] = true; c.wg.Go(func() { _ = c.drain(f.a, false, time.Duration(f.n)*lease/8) }) }
		end = func() { c.wg.Go(func() { _ = c.drain(f.a, true, 0) }) }
	case lateAnswer:
		return c.lateAnswer(f)
	case cutPower:
		begin, end = m.losePower, m.restart
	case loseDisk:
		begin, end = s.loseDisk, s.restart
	case damageDisk:
		return c.damageDisk(f)
	case tearWrite:
		begin, end = s.torn.arm, func() { s.tear(8 * (2*f.n - 1)) }
	case stepNodeClock:
		begin, end = func() { m.clock.Store(int64(clockSteps[f.n-1])) }, func() { m.clock.Store(0) }
	case loseVoter:
		begin, end = func() { c.wg.Go(func() { c.loseVoter(f) }) }, func() {}
	case cutPowerAtWrite, fillDiskAtWrite:
		return []step{{f.at, func() { c.wg.Go(func() { c.atNodeWrite(f) }) }}}
	case fillNodeDisk:
		begin, end = func() { m.full.Store(int64(1 + f.n%2)) }, func() { m.full.Store(0) }
	default:
		panic("unknown fault " + f.kind.String())
	}
	return []step{
		{f.at, func() { c.log("fault: %s", f); begin() }},
		{f.at + f.length, func() { c.log("end of: %s", f); end() }},
	}
}

// lateAnswer returns the steps of answers to a node that are late by about half of a lease, and of its silence from
// an instant on at which such an answer is on its way: for the coordinators its lease began when it asked.
func (c *cluster) lateAnswer(f plannedFault) []step {
	silent := f.at + max(f.length, lease)
	return []step{
		{f.at, func() {
			c.log("fault: %s", f)
			for _, s := range c.servers {
				c.net.slowLink(s.id, f.a, time.Duration(9+f.n)*lease/20)
			}
		}},
		{silent, func() { c.log("nobody hears %s", f.a); c.oneWay([]string{f.a}, c.parties()) }},
		{silent + 3*lease, func() { c.log("end of: %s", f); c.net.mend(f.a) }},
	}
}

// oneWay stalls what is sent from some parties to others.
func (c *cluster) oneWay(from, to []string) {
	for _, x := range from {
		for _, y := range to {
			if x != y {
				c.net.cutLink(x, y)
			}
		}
	}
}

// lies are the verbs whose answers an engine loses.
var lies = []fake.Verb{fake.Create, fake.Start, fake.Delete, fake.Kill, fake.Prepare, fake.List, fake.Checkpoint, fake.Restore, fake.Continue}

// diskFault returns what fails writes while a disk is full, some only after they were made.
func diskFault(full *atomic.Int64) func(written bool) error {
	return func(written bool) error {
		switch n := full.Load(); {
		case n == 1 && !written, n == 2 && written:
			return syscall.ENOSPC
		default:
			return nil
		}
	}
}

// clockSteps are how far the clock of a coordinator or of a node is off, by the fault's number.
var clockSteps = [...]time.Duration{time.Second, lease, 10 * time.Minute, -time.Second, -lease, -10 * time.Minute}

// clocksAhead returns how far a clock of a coordinator may be ahead in a plan.
func (p *plan) clocksAhead() (most time.Duration) {
	for _, f := range p.faults {
		if f.kind == stepClock {
			most = max(most, clockSteps[f.n-1])
		}
	}
	return most
}

func (c *cluster) transferTo(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := c.operator.TransferLeadership(ctx, connect.NewRequest(&droverv1.TransferLeadershipRequest{Id: id}))
	c.log("transfer to %s: %v", id, err) // it may come too late
}

// stepCrash crashes a server at one of its proposals.
type stepCrash struct {
	mu    sync.Mutex // also of what a server's runs change
	after int        // proposals; 0: not armed
	point replica.Point
	fell  bool
}

// arm has the server crash soon, before or after one of its next proposals.
func (s *server) arm(n int) {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	s.step.after, s.step.point = n, replica.Before
	if n%2 == 0 {
		s.step.point = replica.After
	}
}

// crashHook returns the hook of a run: nothing of the run leaves the server once
// it has fallen.
func (s *server) crashHook(h *host, cancel context.CancelFunc) func(replica.Point, uint64) bool {
	return func(p replica.Point, _ uint64) bool {
		s.stall.await(p)
		s.step.mu.Lock()
		defer s.step.mu.Unlock()
		if s.step.fell {
			return true
		}
		if s.step.after == 0 || p != s.step.point {
			return false
		}
		if s.step.after--; s.step.after > 0 {
			return false
		}
		s.step.fell = true
		s.c.log("%s crashes at a proposal", s.id)
		s.c.net.kill(h, false)
		cancel()
		return true
	}
}

// restart starts the server again if it does not run.
func (s *server) restart() {
	s.step.mu.Lock()
	fell, done := s.step.fell, s.done
	s.step.after, s.step.fell = 0, false
	s.step.mu.Unlock()
	if fell {
		<-done
		s.step.mu.Lock()
		s.h = nil
		s.step.mu.Unlock()
	}
	s.start()
}

// restart starts a daemon if none runs.
func (m *machine) restart() {
	defer m.takeTurn()()
	if m.h == nil {
		m.start()
	}
}

// isRefused reports whether a submission can never succeed.
func isRefused(err error) bool {
	return errors.Is(err, fault.Invalid) || errors.Is(err, fault.Conflict) || errors.Is(err, fault.Denied)
}
