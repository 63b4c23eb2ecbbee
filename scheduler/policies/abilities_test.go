package policies

import (
	"maps"
	"testing"

	"github.com/drover-run/drover/scheduler"
)

// The deadline service of a policy follows from its parameters, also if it speculates. Policies not
// listed here have none.
func TestPoliciesTellWhatTheyCanDo(t *testing.T) {
	type abilities struct{ First, Preempts, Guarantees bool } // a DeadlineService
	type params = map[string]string
	cases := map[string][]struct {
		params params
		want   abilities
	}{
		"3dsf": {
			{nil, abilities{true, true, true}},
			{params{"preempt": "cheapest"}, abilities{true, true, true}},
			{params{"preempt": "kill"}, abilities{true, false, true}},
			{params{"preempt": "none", "guarantees": "false"}, abilities{true, false, false}},
		},
		"pdsonqueue": {
			{nil, abilities{true, true, false}},
			{params{"preempt": "none"}, abilities{true, false, false}},
		},
		"edf": {{nil, abilities{true, false, false}}},
	}
	for _, name := range Names() {
		list := cases[name]
		if list == nil {
			list = append(list, struct {
				params params
				want   abilities
			}{})
		}
		for _, c := range list {
			for _, speculate := range []string{"0", "2"} {
				all := params{"speculate": speculate}
				maps.Copy(all, c.params)
				p := mustNew(t, name, all)
				if got := abilities(scheduler.DeadlineServiceOf(p)); got != c.want {
					t.Errorf("%s %v: %+v, want %+v", name, all, got, c.want)
				}
			}
		}
	}
}
