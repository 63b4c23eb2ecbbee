package policytest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// brokenPolicy is a policy that places the first task of each job where it fits and
// then does one thing wrong.
type brokenPolicy struct {
	wrong func(s *scheduler.State, d *scheduler.Decision)
	calls int
}

func (b *brokenPolicy) Name() string { return "broken" }

func (b *brokenPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	b.calls++
	d := scheduler.Decision{At: now}
	m := s.Journal().Mark()
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			for g.Ready() && len(d.Actions) < limit {
				n, disk := s.Cluster().BestNode(g, nil)
				if n == scheduler.NoNode {
					why, nodes := s.Cluster().WhyNowhere(g)
					d.Waiting = append(d.Waiting, scheduler.Waiting{Stage: g.ID(), Reason: why, Nodes: nodes, Tasks: g.Pending})
					break
				}
				d.Actions = append(d.Actions, s.Attempts().PlaceAction(g, g.NextPending(0), n, disk))
				_ = s.Apply(&d.Actions[len(d.Actions)-1], now)
			}
		}
	}
	s.Journal().Rollback(m)
	if b.wrong != nil {
		b.wrong(s, &d)
	}
	return d
}

// fatalCatcher records the message of Round instead of failing.
type fatalCatcher struct{ text string }

func (c *fatalCatcher) Helper() {}

func (c *fatalCatcher) Fatalf(format string, args ...any) {
	c.text = fmt.Sprintf(format, args...)
	panic(c)
}

func (c *fatalCatcher) run(f func()) {
	defer func() {
		if r := recover(); r != nil && r != any(c) {
			panic(r)
		}
	}()
	f()
}

// The suite must catch each kind of defect, and accept a policy without one.
func TestTheSuiteCatchesBrokenPolicies(t *testing.T) {
	calls := 0
	for name, c := range map[string]struct {
		wrong func(s *scheduler.State, d *scheduler.Decision)
		want  string // "": accepted
	}{
		"nothing wrong": {nil, ""},
		"the State is changed": {func(s *scheduler.State, d *scheduler.Decision) {
			_ = s.Apply(&d.Actions[0], d.At)
			d.Actions = d.Actions[1:]
		}, "Decide changed the State"},
		"a try is left open":                 {func(s *scheduler.State, _ *scheduler.Decision) { s.Journal().Mark() }, "Decide changed the State"},
		"it remembers outside policy states": {func(_ *scheduler.State, d *scheduler.Decision) { calls++; d.Waiting[0].Nodes += int32(calls) }, "a new instance on a rebuilt State decides differently"},
		"a task is placed twice":             {func(_ *scheduler.State, d *scheduler.Decision) { d.Actions = append(d.Actions, d.Actions[0]) }, "breaks rule stale"},
		"a task that fits is not placed": {func(_ *scheduler.State, d *scheduler.Decision) {
			if len(d.Actions) > 0 { // the second decision without an event has none
				d.Actions = d.Actions[:len(d.Actions)-1]
				d.Waiting[0].Tasks++
			}
		}, "it fits on node"},
		"a reason is missing":       {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting = d.Waiting[:0] }, "has no reason"},
		"a reason is given twice":   {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting = append(d.Waiting, d.Waiting[0]) }, "two reasons"},
		"the wrong resource":        {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonNoDiskSpace }, "lack"},
		"the wrong number of nodes": {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Nodes++ }, "nodes lack"},
		"no such cap": {func(_ *scheduler.State, d *scheduler.Decision) {
			d.Waiting[0].Reason, d.Waiting[0].Cap = scheduler.ReasonCap, scheduler.CapJob
		}, "are within"},
		"the cycle was not full": {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonCycleFull }, "actions were used"},
		"no data on the node": {func(_ *scheduler.State, d *scheduler.Decision) {
			d.Waiting[0].Reason, d.Waiting[0].Until = scheduler.ReasonData, d.At+9
		}, "no waiting task has data"},
		"no such reservation":       {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonReservation }, "no such reservation"},
		"no suspension in progress": {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonSuspending }, "releases nothing"},
		"planned for now":           {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonLater }, "not in the future"},
		"due without a reservation": {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonDue }, "no reservation for it is due"},
		"behind itself": {func(_ *scheduler.State, d *scheduler.Decision) {
			w := &d.Waiting[0]
			w.Reason, w.Behind = scheduler.ReasonShare, w.Stage
		}, "does not wait"},
		"behind a stage that is not the head": {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonHeadOfLine }, "for a reason of its own"},
		"an unknown reason":                   {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = 99 }, "cannot be proved"},
		"max_parallel is not reached":         {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonMaxParallel }, "run or are suspended"},
		"there are schedulable nodes":         {func(_ *scheduler.State, d *scheduler.Decision) { d.Waiting[0].Reason = scheduler.ReasonNoNode }, "nodes are schedulable"},
		"more actions than the limit": {func(_ *scheduler.State, d *scheduler.Decision) {
			d.Actions = append(d.Actions, make([]scheduler.Action, 100)...)
		}, "at most 100"},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
			w.Submit("a", 9, schedtest.R(2, 2, 10)) // 4 run, 5 wait for CPU
			maker := func() scheduler.Policy { return &brokenPolicy{wrong: c.wrong} }
			got := &fatalCatcher{}
			got.run(func() { Round(got, w.State, maker(), maker, w.Now.Add(time.Second), 100) })
			if (c.want == "") != (got.text == "") || !strings.Contains(got.text, c.want) {
				t.Errorf("caught %q, want %q", got.text, c.want)
			}
		})
	}
}

func TestASecondDecisionWithoutAnEventIsCaught(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	w.Submit("a", 1, schedtest.R(1, 1, 1))
	maker := func() scheduler.Policy {
		return &brokenPolicy{wrong: func(s *scheduler.State, d *scheduler.Decision) {
			d.PolicyStates = append(d.PolicyStates, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.CursorState}})
		}}
	}
	got := &fatalCatcher{}
	got.run(func() { Round(got, w.State, maker(), maker, w.Now, 100) })
	if !strings.Contains(got.text, "a second decision without an event is not empty") {
		t.Errorf("caught %q", got.text)
	}
}
