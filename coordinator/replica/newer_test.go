package replica

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// A server stops at an entry that a newer program wrote, at each start again, applies nothing after it and makes no
// snapshot of what it has without it. What is no entry at all stops nobody: every version passes over it.
func TestAServerStopsAtAnEntryOfANewerProgram(t *testing.T) {
	encode := func(e *droverv1.Entry) []byte {
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	later := tenant(1000)
	later.Version = facts.EntryVersion
	field := []byte{0xf8, 0x3f, 1} // number 1023, a number
	for name, c := range map[string]struct {
		entry []byte
		stops bool
	}{
		"its version":                 {encode(&droverv1.Entry{Version: facts.EntryVersion + 1, Body: tenant(1).Body}), true},
		"rules of a step back":        {encode(&droverv1.Entry{Version: facts.EntryVersion, StepRules: 1000, Body: tenant(1).Body}), true},
		"a body of an unknown type":   {append(encode(&droverv1.Entry{Version: facts.EntryVersion}), field...), true},
		"a field beside a known body": {append(encode(later), field...), true},
		"what is no entry":            {[]byte{0xff, 0xff}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for start := range 2 {
				r := open(t, Config{Dir: dir, ID: "c1", SnapshotEntries: 4, NoSync: true})
				until(t, "it leads or has stopped", func() bool { return r.Leads() || r.WriteError() != nil })
				if start == 0 {
					if _, err := r.BeginTerm(context.Background()); err != nil {
						t.Fatal(err)
					}
					for i := range 3 {
						if _, err := r.Propose(context.Background(), tenant(i)); err != nil {
							t.Fatal(err)
						}
					}
					_ = r.raft.Apply(c.entry, enqueueTimeout).Error() // its effect is looked at
				}
				_, err := r.BeginTerm(context.Background())
				if !c.stops {
					if err != nil || r.WriteError() != nil || count(r) != 3 {
						t.Errorf("start %d: %v, %v, %d tenants", start, err, r.WriteError(), count(r))
					}
				} else {
					until(t, "it says why it stops", func() bool { return r.WriteError() != nil })
					if err == nil || !errors.Is(r.WriteError(), fault.Unsupported) || count(r) != 3 {
						t.Errorf("start %d: BeginTerm %v, the log %v, %d tenants", start, err, r.WriteError(), count(r))
					}
					if _, err := r.Propose(context.Background(), tenant(7)); err == nil {
						t.Error("it took another entry")
					}
					if err := r.raft.Snapshot().Error(); err == nil {
						t.Error("it made a snapshot")
					}
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
