package main

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// The end of a drain is told by what the node was before.
func TestUndrainedText(t *testing.T) {
	for want, n := range map[string]*droverv1.NodeStatus{
		"m2 is schedulable again":             {State: "drained", Draining: true},
		"m2 is no longer drained; it is down": {State: "down", Draining: true},
		"m2 was not drained; it is down":      {State: "down"},
		"m2 was not drained":                  {State: "up"},
	} {
		n.Info = &droverv1.NodeInfo{Name: "m2"}
		if got := undrainedText(n); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	if got := undrainedText(&droverv1.NodeStatus{Info: &droverv1.NodeInfo{Name: "m2"}, State: "probation", Probation: true}); got != "m2 is schedulable again" {
		t.Errorf("after a quarantine: %s", got)
	}
}

// A quarantined node takes no new tasks either, but nobody drains it.
func TestIsDrained(t *testing.T) {
	for name, x := range map[string]struct {
		node *droverv1.NodeStatus
		want bool
	}{
		"up":                        {&droverv1.NodeStatus{State: "up"}, false},
		"draining":                  {&droverv1.NodeStatus{State: "up", Draining: true}, true},
		"drained":                   {&droverv1.NodeStatus{State: "drained", Draining: true}, true},
		"drained, and down":         {&droverv1.NodeStatus{State: "down", Draining: true}, true},
		"quarantined":               {&droverv1.NodeStatus{State: "quarantined", Draining: true, RetryAtMs: 1}, false},
		"quarantined, and now down": {&droverv1.NodeStatus{State: "down", Draining: true, RetryAtMs: 1}, false},
	} {
		if got := isDrained(x.node); got != x.want {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}
