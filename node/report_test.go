package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	hdfsfake "github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/store"
)

// hostileCounters returns counters with this many names below one group, whose
// name is repeated in each flattened counter.
func hostileCounters(group, names int) mapreduce.Counters {
	all := map[string]int64{}
	for i := range names {
		all[fmt.Sprintf("%06d", i)] = 1
	}
	return mapreduce.Counters{strings.Repeat("g", group): all}
}

// forge returns a file with v as JSON and a shell command that puts it in place of
// a file of the harness, where the harness cannot replace it again.
func forge(t *testing.T, name string, v any) (command string) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("mkdir .drover/%[1]s.tmp; cp %[2]s .drover/x; mv .drover/x .drover/%[1]s", name, file)
}

// What a task writes into .drover itself can keep neither its own report nor those
// of its neighbours from the coordinator.
func TestHostileHarnessFiles(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	input, length, _ := writeText(t, 10)
	var all []*droverv1.WantedAttempt
	add := func(command string) *droverv1.WantedAttempt {
		w := with(mapTask(int32(len(all)), input, 0, length, length, 1), func(w *droverv1.WantedAttempt) {
			w.Spec.Builtin, w.Spec.Command = nil, []string{"/bin/sh", "-c", command}
		})
		all = append(all, w)
		return w
	}
	result := mapreduce.Result{Version: mapreduce.ResultVersion, Kind: mapreduce.KindMap, Class: mapreduce.ClassUserExit, UserExit: 3, Error: strings.Repeat("e", 100<<10)}
	long, many := result, result
	long.Counters, many.Counters = hostileCounters(1900, 20_000), hostileCounters(40, 5_000)
	progress := mapreduce.Progress{Version: mapreduce.ResultVersion, Counters: hostileCounters(100, 2_000)}
	tooLong := add("cat >/dev/null; " + forge(t, nameResult, long) + "; kill -9 $PPID")
	tooMany := add("cat >/dev/null; " + forge(t, nameResult, many) + "; kill -9 $PPID")
	hanging := add("cat >/dev/null; " + forge(t, nameProgress, progress) + "; exec sleep 1000")
	neighbour := add("cat")
	n.put(all...)
	if s := n.await(t, tooLong, failed); s.GetCause() != droverv1.Cause_CAUSE_OUTPUT || !strings.Contains(s.GetMessage(), "longer than") {
		t.Errorf("20,000 counters with long names: %s %q", s.GetCause(), s.GetMessage())
	}
	s := n.await(t, tooMany, failed)
	if s.GetCause() != droverv1.Cause_CAUSE_EXIT || len(s.GetCounters()) > 0 || !strings.Contains(s.GetMessage(), "its result says") {
		t.Errorf("5,000 counters: %s, %d kept, %q", s.GetCause(), len(s.GetCounters()), s.GetMessage())
	}
	poll(t, "the refused counters of a running task", func() bool {
		s := n.get(hanging)
		return strings.Contains(s.GetMessage(), "counters were refused") && len(s.GetCounters()) <= maxReportCounters
	})
	n.await(t, neighbour, succeeded)
	n.mu.Lock()
	for id, s := range n.seen {
		if !isBounded(s) {
			t.Errorf("the report of %s has %d bytes", id, proto.Size(s))
		}
	}
	n.mu.Unlock()
	if st, err := os.Stat(filepath.Join(n.config.Data, "node.db")); err != nil || st.Size() > 1<<20 {
		t.Errorf("the node's store: %v %v", st.Size(), err)
	}
	n.remove(all...)
	n.checkNothingLeft()
}

// A record of an earlier daemon, which had no limits, does not silence the node.
func TestOversizedRecordIsClippedAtStart(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "fail")
	b.put(w)
	b.await(t, w, failed)
	b.stopDaemon()
	end := proto.CloneOf(b.get(w))
	end.Counters = map[string]int64{}
	for i := range 10_000 {
		end.Counters[fmt.Sprintf("%s%d", strings.Repeat("g", 1900), i)] = 1
	}
	st, err := store.Open(filepath.Join(b.config.Data, "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	records, err := st.Records()
	if err != nil {
		t.Fatal(err)
	}
	rec := records[store.IDOf(w.GetKey())]
	if rec.End, err = proto.Marshal(end); err != nil {
		t.Fatal(err)
	}
	if err := st.PutRecord(store.IDOf(w.GetKey()), rec); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	s := b.await(t, w, failed)
	if s.GetExitCode() != 3 || len(s.GetCounters()) != 0 || !strings.Contains(s.GetMessage(), "10000 reports of counters were refused") {
		t.Errorf("exit code %d, %d counters, %q", s.GetExitCode(), len(s.GetCounters()), s.GetMessage())
	}
	b.stopDaemon()
	if st, err = store.Open(filepath.Join(b.config.Data, "node.db")); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if records, err = st.Records(); err != nil || len(records[store.IDOf(w.GetKey())].End) > maxAttemptBytes {
		t.Errorf("the stored record has %d bytes, %v", len(records[store.IDOf(w.GetKey())].End), err)
	}
}

// A full report of many attempts comes in parts that the coordinator accepts, and
// all of them arrive.
func TestReportsAreSplit(t *testing.T) {
	table := newAttemptTable(store.Identity{}, 0)
	const count = 700
	for i := range int32(count) {
		key := &droverv1.AttemptKey{Job: 1, Task: i, Attempt: 1, Run: 1}
		a := &attempt{id: store.IDOf(key), mail: mailbox{seen: &droverv1.SeenAttempt{Key: key, Phase: running, Counters: map[string]int64{}}}}
		for c := range maxReportCounters {
			a.mail.seen.Counters[fmt.Sprintf("%s%d", bytes.Repeat([]byte("c"), 240), c)] = 1
		}
		table.byID[a.id] = a
	}
	table.gone["2.0.0.1.1"] = true
	seen := map[store.ID]bool{}
	for full := true; len(seen) < count+1; full = false {
		req := table.nextReport(full)
		if req.GetFull() != full || len(req.GetAttempts()) == 0 || len(req.GetAttempts()) > maxReportAttempts {
			t.Fatalf("full %v with %d attempts after %d", req.GetFull(), len(req.GetAttempts()), len(seen))
		}
		if n := proto.Size(req); n > maxReportBytes+maxAttemptBytes {
			t.Fatalf("a report of %d bytes", n)
		}
		for _, s := range req.GetAttempts() {
			seen[store.IDOf(s.GetKey())] = true
		}
	}
	if len(table.dirty) != 0 {
		t.Errorf("%d attempts are still marked", len(table.dirty))
	}
}

// TestAnswersAreSplit: answers that pile up go out in several reports, each of which the coordinator accepts.
func TestAnswersAreSplit(t *testing.T) {
	n := newTestNode(t, nil)
	fs := hdfsfake.New(hdfsfake.Options{BlockBytes: 10})
	folder := "/in" + strings.Repeat("/"+strings.Repeat("d", 200), 5)
	if err := fs.Mkdir(t.Context(), folder); err != nil {
		t.Fatal(err)
	}
	if err := hdfs.WriteFile(t.Context(), fs, folder+"/f", make([]byte, 50_000), hdfs.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.config.files = singleFileSystem{fs}
	d, err := newDaemon(n.config)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	const count = 4
	for id := range uint64(count) {
		d.requests.Handle(t.Context(), &droverv1.NodeRequest{Id: id + 1, User: "u", Operation: &droverv1.NodeRequest_Locate{Locate: &droverv1.LocateRequest{Paths: []string{"hdfs://" + folder}}}})
	}
	d.requests.Wait()
	reports := 1
	for {
		more, err := d.sendReport(t.Context(), n.term, false)
		if err != nil {
			t.Fatalf("report %d: %v", reports, err)
		}
		if !more {
			break
		}
		reports++
	}
	bytes := 0
	for _, a := range n.answers {
		if bytes += proto.Size(a); a.GetError() != "" {
			t.Error(a.GetError())
		}
	}
	if len(n.answers) != count || bytes < 20<<20 || reports < 3 {
		t.Errorf("%d answers with %d bytes arrived in %d reports", len(n.answers), bytes, reports)
	}
}

// singleFileSystem is a FileSystems with a single one.
type singleFileSystem struct{ fs hdfs.FS }

func (s singleFileSystem) Open(hdfs.URI, string) (hdfs.FS, error) { return s.fs, nil }

func TestBoundReport(t *testing.T) {
	huge := strings.Repeat("é", 1<<20)
	s := &droverv1.SeenAttempt{Message: huge, Status: huge, LevelNote: huge, Step: huge, StderrTail: huge, LostOutputs: slices.Repeat([]*droverv1.MapOutput{{}}, 1<<20), Counters: map[string]int64{huge: 1, "a": 2}}
	for range 1000 {
		s.LevelSteps = append(s.LevelSteps, &droverv1.LevelStep{Step: huge[:100], Error: huge[:4000]})
	}
	got := boundReport(s)
	if !isBounded(got) || got.GetCounters()["a"] != 2 || len(got.GetCounters()) != 1 {
		t.Errorf("%d bytes, counters %v", proto.Size(got), got.GetCounters())
	}
	if boundReport(got) != got || boundReport(nil) != nil {
		t.Error("a bounded report was copied")
	}
}

// What a task's own processes do to the harness, or write in its place, is the
// task's failure: it counts towards its attempts and not against the node.
func TestSignalsAndForgedClassesAreTheTasksFailure(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	input, length, _ := writeText(t, 10)
	commands := map[string]string{"QUIT": "kill -QUIT $PPID; sleep 2; cat", "TERM": "kill -TERM $PPID; sleep 2; cat", "KILL": "kill -KILL $PPID; sleep 2; cat", "ABRT": "kill -ABRT $PPID; sleep 2; cat"}
	for _, c := range []mapreduce.ExitClass{mapreduce.ClassOK, mapreduce.ClassIO, mapreduce.ClassKilled, mapreduce.ClassInternal} {
		r := mapreduce.Result{Version: mapreduce.ResultVersion, Kind: mapreduce.KindMap, Class: c, Error: "forged"}
		commands[c.String()] = "cat >/dev/null; " + forge(t, nameResult, r) + "; kill -9 $PPID"
	}
	i := int32(0)
	for name, command := range commands {
		w := with(mapTask(i, input, 0, length, length, 1), func(w *droverv1.WantedAttempt) {
			w.Spec.Builtin, w.Spec.Command = nil, []string{"/bin/sh", "-c", command}
		})
		i++
		n.put(w)
		if s := n.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_EXIT {
			t.Errorf("%s: %s %q", name, s.GetCause(), s.GetMessage())
		}
	}
}
