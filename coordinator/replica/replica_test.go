package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// Raft never answers a proposal that is still in its queue when it shuts down.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

func open(t *testing.T, c Config) *Replica {
	t.Helper()
	r, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tenant(i int) *droverv1.Entry {
	return &droverv1.Entry{Actor: "test", Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: []*droverv1.Tenant{{Name: fmt.Sprint("t", i), Weight: 1}}}}}
}

func count(r *Replica) (n int) {
	r.Read(func(f *facts.Facts) { n = len(f.Tenants()) - 1 })
	return n
}

func TestProposalsSurviveRestartsAndSnapshots(t *testing.T) {
	dir, total := t.TempDir(), 0
	for round := range 4 {
		r := open(t, Config{Dir: dir, ID: "c1", SnapshotEntries: 8, NoSync: true})
		until(t, "it leads", r.Leads)
		if _, err := r.BeginTerm(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := count(r); n != total {
			t.Fatalf("round %d: %d tenants, want %d", round, n, total)
		}
		last := int64(0)
		for range 30 {
			res, err := r.Propose(context.Background(), tenant(total))
			if err != nil || res.Err != nil || res.Changed != 1 {
				t.Fatal(res, err)
			}
			total++
			r.Read(func(f *facts.Facts) {
				if f.Time() < last {
					t.Fatal("time went back")
				}
				last = f.Time()
			})
		}
		// Snapshots may be made in the meantime; the log before them is
		// truncated.
		if round == 3 {
			until(t, "the log is cut", func() bool { first, _ := r.store.FirstIndex(); return first > 20 })
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOversizedEntryIsRejected(t *testing.T) {
	r := open(t, Config{Dir: t.TempDir(), ID: "c1", NoSync: true})
	defer func() { _ = r.Close() }()
	until(t, "it leads", r.Leads)
	e := &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(make([]byte, MaxEntry))}}}
	if _, err := r.Propose(context.Background(), e); !errors.Is(err, fault.Exhausted) {
		t.Fatalf("got %v", err)
	}
}

// TestClusterSurvivesLossOfLeader runs three servers over TLS, stops the
// leader, and expects every acknowledged entry on the others.
func TestClusterSurvivesLossOfLeader(t *testing.T) {
	c := newTestCluster(t)
	first := 0
	for i := range 20 {
		first = c.propose(i)
	}
	// A user's certificate of the same CA cannot open a raft connection.
	eve, err := c.issue(pki.CertRequest{Kind: pki.KindUser, Name: "eve"}).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := tls.Dial("tcp", c.listensAt(c.peers[0].Address), eve); err == nil {
		_, err = c.Read(make([]byte, 1))
		if err == nil {
			t.Error("a user's certificate was let in")
		}
		_ = c.Close()
	}
	c.stop(first)
	next := c.rs[c.awaitLeader()]
	if n := count(next); n != 20 {
		t.Fatalf("the new leader has %d tenants, want 20", n)
	}
	c.propose(20)
	for _, r := range c.rs {
		if r != nil {
			until(t, "all have it", func() bool { return count(r) == 21 })
		}
	}
}

// TestOneOfThreeGoesOnAlone loses two of three servers for good: the third does
// not lead until it is told to go on alone, and then has everything it had.
func TestOneOfThreeGoesOnAlone(t *testing.T) {
	dir := t.TempDir()
	store, err := raftstore.Open(dir, raftstore.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	conf := raft.Configuration{Servers: []raft.Server{{ID: "c1", Address: "c1:1"}, {ID: "c2", Address: "c2:1"}, {ID: "c3", Address: "c3:1"}}}
	logs := []*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}}
	for i := range 5 {
		e := tenant(i)
		e.Version = facts.EntryVersion
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, &raft.Log{Index: uint64(i + 2), Term: 7, Type: raft.LogCommand, Data: b})
	}
	if err := errors.Join(store.StoreLogs(logs), store.SetUint64([]byte("CurrentTerm"), 7), store.Close()); err != nil {
		t.Fatal(err)
	}
	d, err := Inspect(dir)
	if err != nil || len(d.What) > 0 || len(d.Servers) != 3 {
		t.Fatal(d, err)
	}
	if err := Repair(dir, d); !errors.Is(err, fault.Conflict) {
		t.Fatalf("without -alone: %v", err)
	}
	d.Alone = "c9"
	if err := Repair(dir, d); !errors.Is(err, fault.Invalid) {
		t.Fatalf("as a server that is not known: %v", err)
	}
	d.Alone = "c2"
	if err := Repair(dir, d); err != nil {
		t.Fatal(err)
	}
	r := open(t, Config{Dir: dir, ID: "c2", NoSync: true})
	defer func() { _ = r.Close() }()
	until(t, "it leads", r.Leads)
	term, err := r.BeginTerm(context.Background())
	if err != nil || term <= TermJump {
		t.Fatal(term, err)
	}
	if n := count(r); n != 5 {
		t.Fatalf("%d tenants, want 5", n)
	}
	if servers, _, err := r.Servers(); err != nil || len(servers) != 1 {
		t.Fatal(servers, err)
	}
}

// TestAFolderIsOfOneServer: a copy of a member's folder is not started as another member, which would forget
// what that one voted for. The folder of a build that left no mark is taken.
func TestAFolderIsOfOneServer(t *testing.T) {
	dir := t.TempDir()
	store, err := raftstore.Open(dir, raftstore.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	conf := raft.Configuration{Servers: []raft.Server{{ID: "c1", Address: "c1:1"}, {ID: "c2", Address: "c2:1"}, {ID: "c3", Address: "c3:1"}}}
	log := &raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}
	if err := errors.Join(store.StoreLog(log), store.SetUint64([]byte("CurrentTerm"), 1), store.Close()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id      string
		refused bool
	}{{"m1", true}, {"c2", false}, {"c3", true}, {"c2", false}} { // one that the log does not name leaves no mark
		r, err := Open(Config{Dir: dir, ID: c.id, NoSync: true})
		if err == nil {
			err = r.Close()
		}
		if errors.Is(err, fault.Conflict) != c.refused || (err != nil) != c.refused {
			t.Errorf("started as %s: %v, want refused: %t", c.id, err, c.refused)
		}
	}
}

// TestDecisionOfAFormerTermIsRefused proposes for another term than the leader's.
func TestDecisionOfAFormerTermIsRefused(t *testing.T) {
	r := open(t, Config{Dir: t.TempDir(), ID: "c1", NoSync: true})
	defer func() { _ = r.Close() }()
	until(t, "it leads", r.Leads)
	term, err := r.BeginTerm(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		term uint64
		want int
	}{{term - 1, 0}, {term + 1, 0}, {term, 1}, {0, 2}} {
		e := tenant(c.want)
		e.Term = c.term
		res, err := r.Propose(context.Background(), e)
		if err != nil || (res.Err != nil) != (c.term != 0 && c.term != term) {
			t.Errorf("for term %d in term %d: %v, %v", c.term, term, res.Err, err)
		}
		if n := count(r); n != c.want {
			t.Errorf("for term %d in term %d: %d tenants, want %d", c.term, term, n, c.want)
		}
	}
}
