package coordinator

import (
	"log/slog"
	"maps"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// What an operator chose and another version stored may have parameters that this one does not have:
// they are left out, the policy and its other parameters count. It is not so with a wrong value.
func TestStoredParametersUnknownHereAreLeftOut(t *testing.T) {
	for what, test := range map[string]struct {
		stored, want map[string]string
		policy       string
	}{
		"all known":     {map[string]string{"sf": "0.25"}, map[string]string{"sf": "0.25"}, "3dsf"},
		"one unknown":   {map[string]string{"sf": "0.25", "queues": "5"}, map[string]string{"sf": "0.25"}, "3dsf"},
		"all unknown":   {map[string]string{"queues": "5"}, map[string]string{}, "3dsf"},
		"a wrong value": {map[string]string{"sf": "-1"}, nil, "fifo"},
	} {
		f := facts.New()
		e := &droverv1.Entry{Version: facts.EntryVersion, Body: &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: "3dsf", Params: test.stored}}}
		if r := f.Apply(1, e); r.Err != nil {
			t.Fatal(r.Err)
		}
		c := &core{log: slog.New(slog.DiscardHandler)}
		c.schedulerDefault.Store(&SchedulerChoice{Name: "fifo"})
		l := &leader{proposer: proposer{c: c}}
		if err := l.setPolicy(f); err != nil || l.policyName != test.policy || !maps.Equal(l.policyParams, test.want) {
			t.Errorf("%s: %s %v in force, %v, want %s %v", what, l.policyName, l.policyParams, err, test.policy, test.want)
		}
	}
}
