package store

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

var update = flag.Bool("update", false, "write the file of this version in testdata")

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func want(task int32, spec string) *droverv1.WantedAttempt {
	w := &droverv1.WantedAttempt{
		Key:  &droverv1.AttemptKey{Job: 7, Stage: 1, Task: task, Attempt: 1, Run: 1},
		Goal: droverv1.Goal_GOAL_RUN, Level: droverv1.Level_LEVEL_RUNNING,
	}
	if spec != "" {
		w.Spec = &droverv1.TaskSpec{JobName: spec}
	}
	return w
}

func TestWantedSet(t *testing.T) {
	type message struct {
		w       *droverv1.Wanted
		err     error
		stale   bool
		removed []ID
		want    map[ID]string // id -> job name of its spec
		rev     uint64
	}
	full := func(term, rev uint64, put ...*droverv1.WantedAttempt) *droverv1.Wanted {
		return &droverv1.Wanted{Term: term, Revision: rev, Full: true, Put: put}
	}
	delta := func(term, rev uint64, put ...*droverv1.WantedAttempt) *droverv1.Wanted {
		return &droverv1.Wanted{Term: term, Revision: rev, Put: put}
	}
	for name, messages := range map[string][]message{
		"a delta adds to the full set": {
			{w: full(1, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: delta(1, 6, want(1, "b")), want: map[ID]string{"7.1.0.1.1": "a", "7.1.1.1.1": "b"}, rev: 6},
		},
		"a full set removes what it does not name": {
			{w: full(1, 5, want(0, "a"), want(1, "b")), want: map[ID]string{"7.1.0.1.1": "a", "7.1.1.1.1": "b"}, rev: 5},
			{w: full(1, 3, want(1, "b")), removed: []ID{"7.1.0.1.1"}, want: map[ID]string{"7.1.1.1.1": "b"}, rev: 3},
		},
		"a lower term changes nothing": {
			{w: full(4, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: full(3, 9), err: fault.Conflict, want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
		},
		"an old delta is stale": {
			{w: full(1, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: delta(1, 5, want(1, "b")), stale: true, want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
		},
		"a put without spec keeps the first one": {
			{w: full(1, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: delta(1, 6, want(0, "")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 6},
		},
		"a put without any spec is refused whole": {
			{w: full(1, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: delta(1, 6, want(1, "b"), want(2, "")), err: fault.Invalid, want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
		},
		"remove": {
			{w: full(1, 5, want(0, "a")), want: map[ID]string{"7.1.0.1.1": "a"}, rev: 5},
			{w: &droverv1.Wanted{Term: 1, Revision: 6, Remove: []*droverv1.AttemptKey{want(0, "").GetKey()}},
				removed: []ID{"7.1.0.1.1"}, want: map[ID]string{}, rev: 6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for i, m := range messages {
				c, err := s.Apply(m.w)
				if !errors.Is(err, m.err) || (err == nil) != (m.err == nil) {
					t.Fatalf("message %d: error %v, want %v", i, err, m.err)
				}
				if c.Stale != m.stale || err == nil && !cmp.Equal(c.removed, m.removed) {
					t.Errorf("message %d: stale %v removed %v, want %v %v", i, c.Stale, c.removed, m.stale, m.removed)
				}
				got, err := s.Wanted()
				if err != nil {
					t.Fatal(err)
				}
				names := map[ID]string{}
				for id, w := range got {
					names[id] = w.GetSpec().GetJobName()
				}
				if d := cmp.Diff(m.want, names); d != "" {
					t.Errorf("message %d: wanted set (-want +got):\n%s", i, d)
				}
				if id, _ := s.Identity(); id.Revision != m.rev {
					t.Errorf("message %d: revision %d, want %d", i, id.Revision, m.rev)
				}
			}
		})
	}
}

func TestRegistration(t *testing.T) {
	s := open(t)
	first, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Identity{Cluster: "c1", Node: 3, Epoch: 1, Term: 2}, first); d != "" {
		t.Fatal(d)
	}
	if _, err := s.Apply(&droverv1.Wanted{Term: 2, Revision: 9, Full: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "other"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("another cluster: %v, want conflict", err)
	}
	if _, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 1, Cluster: "c1"}); !errors.Is(err, fault.Conflict) {
		t.Errorf("a lower term: %v, want conflict", err)
	}
	if id, _ := s.Identity(); id.Revision != 9 || id.Cluster != "c1" {
		t.Errorf("a refused registration changed something: %+v", id)
	}
	if id, err := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 2, Term: 2, Cluster: "c1"}); err != nil || id.Revision != 0 {
		t.Errorf("a new epoch: %+v %v, want revision 0", id, err)
	}
}

func TestRecordsSurvive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	end, err := proto.Marshal(&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, ExitCode: 3})
	if err != nil {
		t.Fatal(err)
	}
	rec := Record{Epoch: 2, Started: true, StartedMS: 5, BootID: "b", StartMono: 9, End: end}
	if err := s.PutRecord("7.1.0.1.1", rec); err != nil {
		t.Fatal(err)
	}
	if err := s.PutRecord("7.1.1.1.1", Record{Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRecord("7.1.1.1.1"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a second daemon: %v, want unavailable", err)
	}
	s.Close()
	s, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[ID]Record{"7.1.0.1.1": rec}, got); d != "" {
		t.Error(d)
	}
	if e, err := got["7.1.0.1.1"].DecodeEnd(); err != nil || e.GetExitCode() != 3 {
		t.Errorf("recorded end: %v %v", e, err)
	}
}

// A file written by version 1 opens in every later version with all its content.
// TestOpensOldFiles opens the files that each version wrote. With -update it first writes that
// of this version.
func TestOpensOldFiles(t *testing.T) {
	if *update {
		writeThis(t, filepath.Join("testdata", fmt.Sprintf("v%d.db", schemaVersion)))
	}
	for v := 1; v <= schemaVersion; v++ {
		b, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("v%d.db", v)))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "node.db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var daemons []string
		for range 2 { // the second time as this version left it
			s, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			id, err := s.Identity()
			if d := cmp.Diff(Identity{Cluster: "c1", Node: 3, Epoch: 1, Term: 2, Revision: 9}, id); d != "" || err != nil {
				t.Error(v, d, err)
			}
			set, err := s.Wanted()
			if err != nil || set["7.1.0.1.1"].GetSpec().GetJobName() != "a" || len(set) != 1 {
				t.Errorf("version %d: wanted: %v %v", v, set, err)
			}
			rec, err := s.Records()
			if err != nil || !rec["7.1.0.1.1"].Started {
				t.Errorf("version %d: records: %v %v", v, rec, err)
			}
			daemon, copied, err := s.DaemonID("this one")
			if copied {
				t.Errorf("version %d: a file that no machine is recorded in counts as a copy", v)
			}
			if daemons = append(daemons, daemon); daemon == "" || daemons[0] != daemon || err != nil {
				t.Errorf("version %d: the daemon's ids are %q: %v", v, daemons, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The id of a daemon is of a data folder on one machine: a copy on another machine gets its own id, once, and nothing is wanted
// of it that was wanted of the first. Where a machine has no id, and in a file that no machine is recorded in, the id stays.
func TestACopyOnAnotherMachineGetsAnotherDaemonID(t *testing.T) {
	const machineA = "machine-id-of-a"
	path := filepath.Join(t.TempDir(), "node.db")
	var ids []string
	for i, c := range []struct {
		machine string
		copied  bool
	}{{"", false}, {machineA, false}, {machineA, false}, {"", false}, {"b", true}, {"b", false}, {machineA, true}} {
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_, e1 := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "c1"})
		_, e2 := s.Apply(&droverv1.Wanted{Term: 2, Revision: 9, Full: true, Put: []*droverv1.WantedAttempt{want(0, "a")}})
		if err := errors.Join(e1, e2); err != nil {
			t.Fatal(err)
		}
		id, copied, err := s.DaemonID(c.machine)
		set, e1 := s.Wanted()
		its, e2 := s.Identity()
		if err := errors.Join(e1, e2); err != nil || (len(set) == 0) != copied || (its.Revision == 0) != copied {
			t.Errorf("start %d, on machine %q, copied: %t: wanted are %v, revision %d, %v", i, c.machine, copied, set, its.Revision, err)
		}
		if err != nil || id == "" || copied != c.copied {
			t.Fatalf("start %d, on machine %q: %q, copied: %t, %v", i, c.machine, id, copied, err)
		}
		if last := len(ids) - 1; last >= 0 && slices.Contains(ids, id) == copied || !copied && last >= 0 && ids[last] != id {
			t.Errorf("start %d, on machine %q: the id is %q, before there were %q", i, c.machine, id, ids)
		}
		ids = append(ids, id)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "machine-id-of-a") {
		t.Errorf("the machine's id itself is in the file: %v", err)
	}
}

func writeThis(t *testing.T, path string) {
	os.Remove(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, e1 := s.Register(&droverv1.RegisterResponse{Node: 3, Epoch: 1, Term: 2, Cluster: "c1"})
	_, e2 := s.Apply(&droverv1.Wanted{Term: 2, Revision: 9, Full: true, Put: []*droverv1.WantedAttempt{want(0, "a")}})
	e3 := s.PutRecord("7.1.0.1.1", Record{Epoch: 1, Started: true})
	if err := errors.Join(e1, e2, e3); err != nil {
		t.Fatal(err)
	}
}

func TestRefusesANewerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Update(func(tx *bbolt.Tx) error { return put(tx, bucketMeta, keyVersion, encodeUint(schemaVersion+1)) }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(path); !errors.Is(err, fault.Unsupported) {
		t.Errorf("a newer schema: %v, want unsupported", err)
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("7.1.0.1.1")
	f.Add("1.2.3.4")
	f.Add("01.2.3.4.5")
	fuzztest.Run(f, func(t *testing.T, s string) {
		k, err := ParseID(s)
		if err == nil && string(IDOf(k)) != s {
			t.Errorf("%q reads as %v, which prints as %q", s, k, IDOf(k))
		}
	})
}

// A record of an earlier version has the CPU time of earlier nodes alone.
func TestPriorUsageOfAnEarlierVersion(t *testing.T) {
	var r Record
	if err := json.Unmarshal([]byte(`{"epoch":1,"prior_cpu_ms":7}`), &r); err != nil || r.PriorUsage != (PriorUsage{CPUMS: 7}) {
		t.Errorf("%+v, %v", r, err)
	}
}
