package store

import (
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzWanted stores a desired state as the coordinator streams it, beside what is there: it is
// refused as a whole, or the store has what it says, under names that are names of folders.
func FuzzWanted(f *testing.F) {
	s, err := Open(filepath.Join(f.TempDir(), "node.db"))
	if err != nil {
		f.Fatal(err)
	}
	s.SkipSync()
	f.Cleanup(func() { _ = s.Close() })
	if _, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "c1"}); err != nil {
		f.Fatal(err)
	}
	for _, w := range []*droverv1.Wanted{
		{Term: 2, Revision: 1, Full: true, Put: []*droverv1.WantedAttempt{want(1, "a"), want(2, "b")}, KeepBlobs: []string{"sha256:00"}},
		{Term: 2, Revision: 2, Put: []*droverv1.WantedAttempt{want(1, "")}, Remove: []*droverv1.AttemptKey{want(2, "").Key}},
		{Term: 2, Revision: 3, Put: []*droverv1.WantedAttempt{{}}},
		{Term: 1 << 63, Revision: 1 << 63, Requests: []*droverv1.NodeRequest{{Id: 1}}},
	} {
		b, err := proto.Marshal(w)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		w := &droverv1.Wanted{}
		if proto.Unmarshal(b, w) != nil {
			return
		}
		w.Term = 2 // a greater one would make the store refuse all that follow
		c, err := s.Apply(w)
		if err != nil || c.Stale {
			return
		}
		set, err := s.Wanted()
		if err != nil {
			t.Fatal(err)
		}
		for id, p := range c.Put {
			if IDOf(p.GetKey()) != id || filepath.Base(string(id)) != string(id) {
				t.Errorf("%q is the name of %v", id, p.GetKey())
			}
			if !proto.Equal(set[id], p) {
				t.Errorf("%s: stored %v, not %v", id, set[id], p)
			}
		}
		if w.GetFull() && len(set) > len(c.Put) {
			t.Errorf("%d attempts after a full set of %d", len(set), len(c.Put))
		}
		if _, err := s.Apply(&droverv1.Wanted{Term: 2, Full: true}); err != nil {
			t.Fatal(err)
		}
	})
}
