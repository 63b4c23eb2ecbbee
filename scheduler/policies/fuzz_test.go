package policies

import (
	"bytes"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// FuzzPoliciesOnLoadedState checks that no State that can be loaded from a file
// makes a policy or Check panic, or violate a rule.
func FuzzPoliciesOnLoadedState(f *testing.F) {
	type variant struct {
		name   string
		params map[string]string
	}
	all := []variant{
		{"3dsf", map[string]string{"first": "5", "speculate": "1.1", "max_suspended": "5s"}},
		{"3dsf", map[string]string{"regular_order": "fcfs", "reserve": "false", "guarantees": "false", "migrate": "true", "preempt": "kill"}},
		{"capacity", map[string]string{"reserve": "true", "speculate": "1.1"}},
	}
	for _, info := range table {
		all = append(all, variant{info.Name, nil})
	}
	for seed := range uint64(60) {
		c := schedtest.NewChaos(f, seed)
		for range 5 + seed%36 {
			c.Step()
			for _, a := range c.Actions(1) { // so that attempts run, are suspended and killed, and reservations exist
				if c.State.Apply(&a, c.Now) == nil && seed%2 == 0 {
					c.Step()
				}
			}
		}
		f.Add(c.State.Bytes(), uint8(seed))
	}
	w := schedtest.New(f).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a") // few bytes stand for many tasks
	w.Submit("a", 1<<20, schedtest.R(1, 1, 1))                                // mutations make millions of it; more would be most of the time
	f.Add(w.State.Bytes(), uint8(0))
	fuzztest.Run(f, func(t *testing.T, raw []byte, which uint8) {
		s, err := scheduler.Load(bytes.NewReader(raw))
		if err != nil {
			return
		}
		v := all[int(which)%len(all)]
		p := mustNew(t, v.name, v.params)
		before := s.Bytes()
		now := scheduler.Time(time.Hour)
		d := p.Decide(s, now, 100)
		if !bytes.Equal(before, s.Bytes()) {
			t.Fatalf("%s changed the State", p.Name())
		}
		if v := scheduler.Check(s, &d, now); len(v) > 0 {
			t.Fatalf("%s: %v\n%s", p.Name(), v, d.String())
		}
	})
}
