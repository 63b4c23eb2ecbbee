package coordinator

import (
	"testing"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzReport reads a report of an attempt as a node sends it: what becomes a fact is bounded.
func FuzzReport(f *testing.F) {
	seen := &droverv1.SeenAttempt{Key: &droverv1.AttemptKey{Job: 1, Attempt: 1, Run: 1}, Phase: droverv1.Phase_PHASE_RUNNING, Message: "m\x1b[2J", Progress: 0.5,
		Counters: map[string]int64{"a:b": 1}, Occupied: &droverv1.Resources{Cpu: -1}, LevelSteps: []*droverv1.LevelStep{{Step: "freeze"}}, LostOutputs: []*droverv1.MapOutput{{Task: -1, Address: "a"}}}
	raw, err := proto.Marshal(seen)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	none, node := facts.New(), &facts.Node{ID: 1}
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		a := &droverv1.SeenAttempt{}
		if proto.Unmarshal(b, a) != nil {
			return
		}
		sanitizeReport(a)
		_ = changesFacts(none, node, a)
		if len(a.Message) > 2*maxLine || len(a.Status) > maxLine || len(a.StderrTail) > maxTail || len(a.LostOutputs) > maxLostOutputs || len(a.LevelSteps) > maxLevelSteps || !(a.Progress >= 0 && a.Progress <= 1) {
			t.Errorf("a report without bounds: %d bytes of message, %d of status, %d of tail, progress %g", len(a.Message), len(a.Status), len(a.StderrTail), a.Progress)
		}
		if _, err := proto.Marshal(a); err != nil { // it becomes an entry of the log
			t.Errorf("it cannot be stored: %v", err)
		}
	})
}

func FuzzToken(f *testing.F) {
	text, _, _ := newToken()
	f.Add(text)
	f.Add("drover__")
	fuzztest.Run(f, func(t *testing.T, s string) {
		if id, hash, ok := parseToken(s); ok && (len(id) != 2*tokenIDBytes || len(hash) != 32) {
			t.Errorf("%q is a token with id %q", s, id)
		}
	})
}
