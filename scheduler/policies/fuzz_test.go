package policies

import (
	"bytes"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// FuzzPoliciesOnRandomState checks that no State that events and actions lead to
// makes a policy or Check panic, or violate a rule.
func FuzzPoliciesOnRandomState(f *testing.F) {
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
		f.Add(seed, uint8(5+seed%36), uint8(seed))
	}
	fuzztest.Run(f, func(t *testing.T, seed uint64, steps, which uint8) {
		c := schedtest.NewChaos(t, seed)
		for range min(steps, 64) {
			c.Step()
			for _, a := range c.Actions(1) { // so that attempts run, are suspended and killed, and reservations exist
				if c.State.Apply(&a, c.Now) == nil && seed%2 == 0 {
					c.Step()
				}
			}
		}
		v := all[int(which)%len(all)]
		p := mustNew(t, v.name, v.params)
		before := schedtest.Bytes(c.State)
		now := c.Now.Add(time.Hour)
		d := p.Decide(c.State, now, 100)
		if !bytes.Equal(before, schedtest.Bytes(c.State)) {
			t.Fatalf("%s changed the State", p.Name())
		}
		if v := scheduler.Check(c.State, &d, now); len(v) > 0 {
			t.Fatalf("%s: %v\n%s", p.Name(), v, d.String())
		}
	})
}
