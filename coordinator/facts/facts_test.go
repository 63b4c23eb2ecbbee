package facts

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

func dump(t testing.TB, f *Facts) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Snapshot().Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const (
	runs  = 12
	steps = 400
)

func TestApplyIsDeterministic(t *testing.T) {
	for _, seed := range seeds(t, runs) {
		reproduce(t, seed)
		a, b := New(), New()
		var ja, jb []Change
		applyRandomEntries(seed, a, steps, func(i int, e *droverv1.Entry) {
			ja = append(ja, a.TakeJournal()...)
			b.Apply(uint64(i)+1, e)
			jb = append(jb, b.TakeJournal()...)
		})
		if d := cmp.Diff(dump(t, a), dump(t, b)); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		if d := cmp.Diff(ja, jb); d != "" {
			t.Fatalf("seed %d: journals differ: %s", seed, d)
		}
	}
}

// TestSnapshotIsImmutableAndRestores takes a snapshot in the middle of a log,
// applies the rest, and only then encodes the snapshot: it must hold the
// middle, and applying the rest to it must lead to the same end.
func TestSnapshotIsImmutableAndRestores(t *testing.T) {
	for _, seed := range seeds(t, runs) {
		reproduce(t, seed)
		f := New()
		var mid *Snapshot
		var then string
		var rest []*droverv1.Entry
		cut := steps / 2
		applyRandomEntries(seed, f, steps, func(i int, e *droverv1.Entry) {
			switch {
			case i == cut:
				then = dump(t, f)
				mid = f.Snapshot()
			case i > cut:
				rest = append(rest, e)
			}
		})
		var b bytes.Buffer
		if err := mid.Encode(&b); err != nil {
			t.Fatal(err)
		}
		if b.String() != then {
			t.Fatalf("seed %d: the snapshot changed after it was taken:\n%s", seed, cmp.Diff(then, b.String()))
		}
		g, err := Restore(&b)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, e := range rest {
			g.Apply(uint64(cut+2+i), e)
		}
		if d := cmp.Diff(dump(t, f), dump(t, g)); d != "" {
			t.Fatalf("seed %d: after a restore the same entries lead to other facts: %s", seed, d)
		}
		if d := cmp.Diff(indexes(f), indexes(g)); d != "" {
			t.Fatalf("seed %d: indexes: %s", seed, d)
		}
	}
}

// indexes returns what a snapshot leaves out and Restore rebuilds.
func indexes(f *Facts) string {
	s := fmt.Sprint(f.live, f.outputs, len(f.keys), f.nodeName)
	refs := map[string]int32{}
	f.EachBlob(func(b *Blob) { refs[b.Digest] = b.Refs })
	s += fmt.Sprint(refs)
	for n, keys := range f.onNode {
		if len(keys) == 0 {
			delete(f.onNode, n)
		}
	}
	return s + fmt.Sprint(f.onNode)
}

// TestCountsMatchRecount compares every incrementally maintained count with a
// slow recount.
func TestCountsMatchRecount(t *testing.T) {
	for _, seed := range seeds(t, runs) {
		reproduce(t, seed)
		f := New()
		applyRandomEntries(seed, f, steps, func(i int, e *droverv1.Entry) {
			if err := verifyCounts(f); err != nil {
				t.Fatalf("seed %d, entry %d %s: %v", seed, i+1, protojson.Format(e), err)
			}
		})
	}
}

func verifyCounts(f *Facts) error {
	for _, n := range f.Nodes() {
		if n.RetryAt > 0 && !n.Draining || n.Probation && n.Draining || n.Draining && n.Schedulable() {
			return fmt.Errorf("node %d: draining %v, retry at %d, on probation %v", n.ID, n.Draining, n.RetryAt, n.Probation)
		}
	}
	places := newReservedOutputs()
	for path, job := range f.outputs.byPath {
		places.add(path, job)
	}
	if !maps.Equal(places.byPlace, f.outputs.byPlace) {
		return fmt.Errorf("outputs %v are at %v", f.outputs.byPath, f.outputs.byPlace)
	}
	used, active := map[int32]Amounts{}, map[int32]int32{}
	refs := map[string]int32{}
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if err := verifyJobCounts(f, j, used, active); err != nil {
			return err
		}
		for _, d := range Digests(j.Spec) {
			refs[d]++
			if f.Blob(d) == nil {
				return fmt.Errorf("job %d names %s, which is gone", id, d)
			}
		}
		if got := f.liveJob(j.Spec.Tenant, j.Name); !j.HasEnded() && got != j {
			return fmt.Errorf("name %s of tenant %s does not belong to job %d", j.Name, j.Spec.Tenant, id)
		}
		if j.Output != "" && (!j.HasEnded() || j.OutputReserved) && f.outputs.byPath[j.Output] != id {
			return fmt.Errorf("output %s is reserved by %d, want %d", j.Output, f.outputs.byPath[j.Output], id)
		}
		if j.State == droverv1.JobState_JOB_STATE_SUCCEEDED && !j.isComplete() {
			return fmt.Errorf("job %d succeeded with tasks left", id)
		}
	}
	for _, n := range f.Nodes() {
		if n.Used != used[n.ID] || n.Attempts != active[n.ID] {
			return fmt.Errorf("node %d has %v in %d attempts, counted %v in %d", n.ID, n.Used, n.Attempts, used[n.ID], active[n.ID])
		}
		if !n.Up && n.Attempts > 0 {
			return fmt.Errorf("node %d is down with %d attempts", n.ID, n.Attempts)
		}
	}
	for d, b := range f.blobs {
		if b.Refs != refs[d] {
			return fmt.Errorf("%s has %d references, counted %d", d, b.Refs, refs[d])
		}
	}
	if j, c := len(f.jobEvents.list), len(f.clusterEvents.list); j > MaxEvents || c > MaxClusterEvents {
		return fmt.Errorf("%d events of jobs, %d of the cluster", j, c)
	}
	return nil
}

// verifySuspension checks the invariants of a live attempt's level.
func verifySuspension(a *Attempt) error {
	x, running := a.Suspension, droverv1.Level_LEVEL_RUNNING
	switch {
	case x.ImageNode != 0 && (a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != running || x.ImageRun >= a.Run || x.ImageNode == a.Node):
		return fmt.Errorf("at %v for %v, it migrates from %d run %d to %d run %d", a.Level, a.Target, x.ImageNode, x.ImageRun, a.Node, a.Run)
	case a.Target == a.Level:
		return fmt.Errorf("its target %v is its level", a.Target)
	case x.PreservedCPUMS > x.PreemptedCPUMS || x.PreemptedCPUMS < 0:
		return fmt.Errorf("%d ms preserved of %d preempted", x.PreservedCPUMS, x.PreemptedCPUMS)
	case a.Level != running && a.Target != running && (a.Occupied.CPU != 0 || a.Occupied.IO != 0):
		return fmt.Errorf("it is %v and occupies %v", a.Level, a.Occupied)
	}
	return nil
}

func verifyJobCounts(f *Facts, j *Job, used map[int32]Amounts, active map[int32]int32) error {
	live := int32(0)
	for s := range j.Stages {
		var pending, done, stageLive, suspended int32
		for i := range j.Stages[s].Tasks {
			t := j.Stages[s].Task(i)
			hasActive, seq := false, map[int32]bool{}
			for _, a := range t.Attempts {
				if seq[a.Attempt] {
					return fmt.Errorf("job %d %d/%d has attempt %d twice", j.ID, s, i, a.Attempt)
				}
				seq[a.Attempt] = true
				if !a.State.IsActive() {
					continue
				}
				hasActive = true
				stageLive++
				active[a.Node]++
				used[a.Node] = used[a.Node].add(a.Occupied, 1)
				if a.Level != droverv1.Level_LEVEL_RUNNING {
					suspended++
				}
				if n := f.Node(a.Node); !n.Up || n.Epoch != a.Epoch {
					return fmt.Errorf("job %d %d/%d occupies a node that is gone", j.ID, s, i)
				}
				if err := verifySuspension(a); err != nil {
					return fmt.Errorf("job %d %d/%d.%d: %w", j.ID, s, i, a.Attempt, err)
				}
				if a.State == AttemptLive && j.HasEnded() {
					return fmt.Errorf("job %d ended and %d/%d was not stopped", j.ID, s, i)
				}
			}
			switch {
			case t.Winner != 0:
				done++
				if t.State != TaskDone || t.WinningAttempt() == nil || t.WinningAttempt().State != AttemptSucceeded {
					return fmt.Errorf("job %d %d/%d is %v with winner %v", j.ID, s, i, t.State, t.WinningAttempt())
				}
			case hasActive:
				if t.State != TaskActive {
					return fmt.Errorf("job %d %d/%d is %v and has an active attempt", j.ID, s, i, t.State)
				}
			default:
				pending++
				if t.State != TaskPending {
					return fmt.Errorf("job %d %d/%d is %v without active attempts", j.ID, s, i, t.State)
				}
			}
		}
		st := &j.Stages[s]
		if st.Pending != pending || st.Done != done || st.Live != stageLive || st.Suspended != suspended {
			return fmt.Errorf("job %d stage %d counts pending %d done %d live %d suspended %d; counted %d %d %d %d", j.ID, s, st.Pending, st.Done, st.Live, st.Suspended, pending, done, stageLive, suspended)
		}
		live += stageLive
	}
	if j.Live != live {
		return fmt.Errorf("job %d counts %d live, counted %d", j.ID, j.Live, live)
	}
	return nil
}

func TestGarbageNeverPanics(t *testing.T) {
	for _, seed := range seeds(t, runs) {
		reproduce(t, seed)
		r := rand.New(rand.NewPCG(seed, 2))
		f := New()
		applyRandomEntries(seed, f, 100, nil)
		g := newGen(seed+1, f)
		for i := range 400 {
			b, err := proto.Marshal(g.entry())
			if err != nil {
				t.Fatal(err)
			}
			for range 1 + r.IntN(4) {
				if len(b) > 0 {
					b[r.IntN(len(b))] = byte(r.Uint32())
				}
			}
			var e droverv1.Entry
			if proto.Unmarshal(b, &e) != nil {
				continue
			}
			f.Apply(uint64(200+i), &e)
			if err := verifyCounts(f); err != nil {
				t.Fatalf("seed %d: %s: %v", seed, protojson.Format(&e), err)
			}
		}
	}
}

func FuzzApply(f *testing.F) {
	x := New()
	applyRandomEntries(1, x, 60, func(_ int, e *droverv1.Entry) {
		b, _ := proto.Marshal(e)
		f.Add(b)
	})
	fresh := func() *Facts {
		x := New()
		applyRandomEntries(3, x, 80, nil)
		return x
	}
	// The facts take many entries before they are rebuilt, which costs more than an entry.
	shared, applied := fresh(), [][]byte(nil)
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var e droverv1.Entry
		if proto.Unmarshal(b, &e) != nil {
			return
		}
		if len(applied) == 256 {
			shared, applied = fresh(), nil
		}
		applied = append(applied, bytes.Clone(b))
		shared.Apply(uint64(1000+len(applied)), &e)
		if err := verifyCounts(shared); err != nil {
			t.Fatalf("%v, after %q", err, applied)
		}
	})
}

func FuzzRestore(f *testing.F) {
	x := New()
	applyRandomEntries(1, x, 80, nil)
	f.Add([]byte(dump(f, x)))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if g, err := Restore(bytes.NewReader(b)); err == nil {
			applyRandomEntries(7, g, 5, nil)
		} else if !errors.Is(err, fault.Corrupt) && !errors.Is(err, fault.Unsupported) {
			t.Fatalf("error without a class: %v", err)
		}
	})
}

func TestTruncatedSnapshotIsCorrupt(t *testing.T) {
	f := New()
	applyRandomEntries(5, f, 200, nil)
	whole := dump(t, f)
	for _, n := range []int{0, 1, len(whole) / 3, len(whole) - 3, len(whole) - 30} {
		if _, err := Restore(bytes.NewReader([]byte(whole[:n]))); !errors.Is(err, fault.Corrupt) {
			t.Errorf("%d of %d bytes: %v, want corrupt", n, len(whole), err)
		}
	}
}

// A record of an unknown type, and one without what its type has, are corrupt, and the error names the type.
func TestIncompleteRecordsAreCorrupt(t *testing.T) {
	head, _, _ := strings.Cut(dump(t, New()), "\n")
	restore := func(record string) error {
		_, err := Restore(strings.NewReader(head + "\n" + record + "\n"))
		return err
	}
	types := []string{"unknown"}
	for _, r := range recordTypes {
		types = append(types, r.name)
	}
	for _, name := range types {
		if err := restore(fmt.Sprintf(`{"t":%q}`, name)); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want corrupt", name, err)
		}
	}
	for _, record := range []string{`{"t":"tenant","tenant":{"spec":""}}`, `{"t":"node","node":{"info":""}}`, `{"t":"token","token":{"hash":"aGk="}}`, `{"t":"job","job":{"limits":[]}}`, `{"t":"secret","secret":{"versions":[null]}}`} {
		if err := restore(record); !errors.Is(err, fault.Corrupt) || !errors.Is(err, errIncomplete) {
			t.Errorf("%s: %v, want incomplete", record, err)
		}
	}
}

// TestOldSnapshotsAreRead restores the snapshots that earlier versions wrote.
// With DROVER_UPDATE=1 it first writes that of this version.
func TestOldSnapshotsAreRead(t *testing.T) {
	snap := filepath.Join("testdata", fmt.Sprintf("snapshot-v%d.jsonl", SnapshotVersion))
	if os.Getenv("DROVER_UPDATE") != "" {
		f := New()
		applyRandomEntries(11, f, 300, nil)
		l := secretLog{f}
		tenant := f.Tenants()[0].Spec.GetName()
		if err := errors.Join(tenantLog{f}.put("gone", "").Err, tenantLog{f}.delete("gone").Err, l.put(tenant, "kept", 1, 10).Err, l.put(tenant, "gone", 1, 10).Err, l.delete(tenant, "gone", 0).Err); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(snap, []byte(dump(t, f)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("testdata/snapshot-v*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no old snapshots: %v", err)
	}
	for _, p := range files {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Restore(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if err := verifyCounts(f); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if all, _ := f.JobCount(); all == 0 || len(f.Nodes()) == 0 {
			t.Errorf("%s: nothing in it", p)
		}
		applyRandomEntries(12, f, 50, nil) // the restored facts accept further entries
	}
}

func TestJournalIsBounded(t *testing.T) {
	f := New()
	for range maxJournal + 10 {
		writerOf(f).recordChange(Change{Kind: ChangeJob})
	}
	writerOf(f).recordChange(Change{Kind: ChangeBlobGone, Digest: "d"})
	j := f.TakeJournal()
	if len(j) != 2 || j[0].Kind != ChangeReset || j[1].Digest != "d" {
		t.Fatalf("%d changes, the first %v", len(j), j[0].Kind)
	}
}
