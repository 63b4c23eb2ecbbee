package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	fakehdfs "github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/shuffle"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
	"github.com/drover-run/drover/runtime/process"
)

// onProcesses configures a node of plain processes that reads local files.
func onProcesses(t testing.TB, b *testNode) {
	t.Helper()
	d, err := process.New(process.Config{StateDir: filepath.Join(t.TempDir(), "processes")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.stopDaemon()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	b.config.Driver, b.config.Harness = d, ""
	b.config.FilesConfig = fsys.Config{Local: true, LocalBlock: 4096}
}

// corpus returns lines of words and the count of each word.
func corpus(lines int) (string, map[string]int) {
	words := []string{"apple", "pear", "plum", "quince", "medlar", "sloe", "damson"}
	var b strings.Builder
	counts := map[string]int{}
	for i := range lines {
		for j := range 1 + i%5 {
			w := words[(i*3+j*j)%len(words)]
			counts[w]++
			fmt.Fprintf(&b, "%s ", w)
		}
		b.WriteByte('\n')
	}
	return b.String(), counts
}

func taskOf(job uint64, stage, task int32, kind string) *droverv1.WantedAttempt {
	w := groupTask(task)
	w.Key.Job, w.Key.Stage = job, stage
	w.Spec.Kind, w.Spec.StageName, w.Spec.ShuffleToken = kind, kind, "secret"
	w.Spec.Demand.Memory = 64 << 20
	return w
}

func mapTask(task int32, input string, from, to, length int64, partitions int32) *droverv1.WantedAttempt {
	w := taskOf(1, 0, task, kindMap)
	w.Spec.Builtin, w.Spec.Partitions = []string{"wordcount"}, partitions
	w.Spec.Split = []*droverv1.SplitPiece{{Uri: "file://" + input, Offset: from, Length: to - from, FileLength: length}}
	return w
}

// splitMaps returns n map tasks that share a file.
func splitMaps(input string, length int64, n, partitions int32) []*droverv1.WantedAttempt {
	var maps []*droverv1.WantedAttempt
	for i := range int64(n) {
		maps = append(maps, mapTask(int32(i), input, length*i/int64(n), length*(i+1)/int64(n), length, partitions))
	}
	return maps
}

func reduceTask(task, maps int32, output string, outputs []*droverv1.MapOutput) *droverv1.WantedAttempt {
	w := taskOf(1, 1, task, kindReduce)
	w.Spec.Builtin, w.Spec.MapTasks, w.Spec.Output = []string{"sum"}, maps, "file://"+output
	w.MapOutputs = outputs
	return w
}

func outputOf(w *droverv1.WantedAttempt, address string) *droverv1.MapOutput {
	k := w.GetKey()
	return &droverv1.MapOutput{Task: k.GetTask(), Attempt: k.GetAttempt(), Run: k.GetRun(), Stage: k.GetStage(), Address: address}
}

// readCounts parses the files' lines "word TAB count".
func readCounts(t *testing.T, files ...string) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			word, n := "", 0
			if _, err := fmt.Sscanf(line, "%s\t%d\n", &word, &n); err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			got[word] += n
		}
	}
	return got
}

func sameCounts(t *testing.T, got, want map[string]int) {
	t.Helper()
	for w := range want {
		if got[w] != want[w] {
			t.Errorf("%s: %d, want %d", w, got[w], want[w])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d words, want %d", len(got), len(want))
	}
}

func writeText(t *testing.T, lines int) (path string, length int64, counts map[string]int) {
	t.Helper()
	s, counts := corpus(lines)
	path = filepath.Join(t.TempDir(), "in.txt")
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, int64(len(s)), counts
}

func appendText(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Maps and reduces run on two nodes; every reduce fetches from both. What was appended to the input later is not counted.
func TestMapReduceOnTwoNodes(t *testing.T) {
	nodes := []*testNode{newTestNode(t, nil), newTestNode(t, nil)}
	for _, n := range nodes {
		onProcesses(t, n)
		n.start()
	}
	input, length, want := writeText(t, 3000)
	appendText(t, input, "apple half a li")
	out := t.TempDir()
	const maps, reduces = 4, 3
	tasks := splitMaps(input, length, maps, reduces)
	var outputs []*droverv1.MapOutput
	var stored, fetched int64
	for i, w := range tasks { // each node stores both, and each reducer merges both
		w.Spec.CompressMapOutput = []string{"none", "zstd"}[i/2]
		nodes[i%2].put(w)
	}
	for i, w := range tasks {
		s := nodes[i%2].await(t, w, succeeded)
		if s.GetOutputLength() == 0 || s.GetUsage().GetMemoryPeak() == 0 || s.GetOutputChecksum() == "" || s.GetCounters()["map:in_records"] == 0 {
			t.Errorf("map %d: %v", i, s)
		}
		if c := s.GetCounters(); c["map:stored_records"] != c["map:out_records"] || (c["map:stored_bytes"] < c["map:out_bytes"]) != (i/2 == 1) {
			t.Errorf("map %d of compression %q: %v", i, w.Spec.CompressMapOutput, c)
		}
		stored += s.GetCounters()["map:stored_bytes"]
		outputs = append(outputs, outputOf(w, nodes[i%2].address))
	}
	var files []string
	var reducers []*droverv1.WantedAttempt
	for i := range int32(reduces) {
		if err := os.Mkdir(filepath.Join(out, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(out, fmt.Sprint(i), "part"))
		reducers = append(reducers, reduceTask(i, maps, files[i], outputs))
		nodes[i%2].put(reducers[i])
	}
	for i, w := range reducers {
		s := nodes[i%2].await(t, w, succeeded)
		if st, err := os.Stat(files[i]); err != nil || st.Size() != s.GetOutputLength() {
			t.Errorf("reduce %d reported %d bytes: %v %v", i, s.GetOutputLength(), st, err)
		}
		fetched += s.GetCounters()["reduce:fetched_bytes"]
	}
	if stored == 0 || stored != fetched {
		t.Errorf("%d bytes stored, %d fetched", stored, fetched)
	}
	sameCounts(t, readCounts(t, files...), want)
	for _, n := range nodes {
		n.remove(append(slices.Clone(tasks), reducers...)...)
		n.checkNothingLeft()
	}
}

// A reduce task that starts before its maps receives their outputs as they become
// known; a lost one is reported and fetched from its next attempt.
func TestReduceFollowsItsMaps(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	input, length, want := writeText(t, 500)
	tasks := splitMaps(input, length, 2, 1)
	file := filepath.Join(t.TempDir(), "part")
	lost := outputOf(tasks[1], n.address)
	lost.Attempt = 7 // there is no such attempt
	r := reduceTask(0, 2, file, []*droverv1.MapOutput{lost})
	n.put(r)
	poll(t, "the lost map in the report", func() bool {
		l := n.get(r).GetLostOutputs()
		return len(l) == 1 && l[0].GetTask() == 1 && l[0].GetAttempt() == 7 && l[0].GetAddress() == ""
	})
	n.put(tasks...)
	for _, w := range tasks {
		n.await(t, w, succeeded)
	}
	n.put(with(reduceTask(0, 2, file, []*droverv1.MapOutput{outputOf(tasks[0], n.address), outputOf(tasks[1], n.address)}),
		func(w *droverv1.WantedAttempt) { w.Spec = nil; w.MapOutputsComplete = true }))
	s := n.await(t, r, succeeded)
	sameCounts(t, readCounts(t, file), want)
	if ran := time.Duration(s.GetRunningMs()) * time.Millisecond; ran >= time.Since(time.UnixMilli(s.GetStartedMs())) {
		t.Errorf("it ran for %v, with the time that it waited for maps", ran)
	}
}

// The daemon stops during a map and a reduce; the next one adopts both, resumes
// their fetches, and finishes them.
func TestRestartInTheMiddle(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	input, length, want := writeText(t, 500)
	fs := fakehdfs.New(fakehdfs.Options{})
	content, err := os.ReadFile(input)
	if err != nil {
		t.Fatal(err)
	}
	if err := hdfs.WriteFile(t.Context(), fs, "/in", content, hdfs.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := fs.Mkdir(t.Context(), "/out/_temporary/1"); err != nil {
		t.Fatal(err)
	}
	fs.Delay(fakehdfs.OpRead, time.Hour) // the map's input hangs
	n.config.files = single{fs}
	n.start()
	m := mapTask(0, "/in", 0, length, length, 1)
	m.Spec.Split[0].Uri = "hdfs:///in"
	r := reduceTask(0, 1, "", nil)
	r.Spec.Output = "hdfs:///out/_temporary/1/1.1/part"
	n.put(m, r)
	n.await(t, m, running)
	n.await(t, r, running)
	started := n.get(m).GetStartedMs()
	n.stopDaemon()
	fs.Delay(fakehdfs.OpRead, 0)
	n.start()
	if s := n.await(t, m, succeeded); s.GetStartedMs() != started {
		t.Errorf("the map was started again: %d, before %d", s.GetStartedMs(), started)
	}
	n.put(with(reduceTask(0, 1, "", []*droverv1.MapOutput{outputOf(m, n.address)}), func(w *droverv1.WantedAttempt) { w.Spec = nil }))
	n.await(t, r, succeeded)
	b, err := hdfs.ReadFile(t.Context(), fs, "/out/_temporary/1/1.1/part", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(part, b, 0o600); err != nil {
		t.Fatal(err)
	}
	sameCounts(t, readCounts(t, part), want)
}

// single is a FileSystems with one file system.
type single struct{ fs hdfs.FS }

func (s single) Open(hdfs.URI, string) (hdfs.FS, error) { return s.fs, nil }

// A helper process has the same result as a helper inside the daemon.
func TestHelperProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not proved here: that a helper process gives the result of a helper inside the daemon; it becomes the tenant's uid, which needs root")
	}
	n := newTestNode(t, nil)
	onProcesses(t, n)
	d, err := process.New(process.Config{StateDir: filepath.Join(t.TempDir(), "p"), SwitchUser: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	base, err := os.MkdirTemp("", "drover-node-*") // t.TempDir is inaccessible to other uids
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	defer n.stopDaemon()
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n.config.Driver, n.config.switchUser, n.config.Helper, n.config.Data = d, true, []string{program, "helper"}, filepath.Join(base, "data")
	n.start()
	s, want := corpus(800)
	input := filepath.Join(base, "in.txt")
	if err := os.WriteFile(input, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
	asTenant := func(w *droverv1.WantedAttempt) { w.Spec.Uid = 4242 }
	w := with(mapTask(0, input, 0, int64(len(s)), int64(len(s)), 1), asTenant)
	n.put(w)
	n.await(t, w, succeeded)
	file := filepath.Join(base, "part")
	r := with(reduceTask(0, 1, file, []*droverv1.MapOutput{outputOf(w, n.address)}), asTenant)
	n.put(r)
	n.await(t, r, succeeded)
	sameCounts(t, readCounts(t, file), want)
	out, err := exec.Command("stat", "-c", "%u", file).Output()
	if err != nil || strings.TrimSpace(string(out)) != "4242" {
		t.Errorf("the output belongs to uid %s %v, want the tenant's 4242", out, err)
	}
}

func TestMapOnlyAndMissingInput(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	input, length, _ := writeText(t, 100)
	file := filepath.Join(t.TempDir(), "part")
	w := with(mapTask(0, input, 0, length, length, 0), func(w *droverv1.WantedAttempt) {
		w.Spec.Builtin, w.Spec.Output = []string{"grep", "quince"}, "file://"+file
	})
	missing := mapTask(1, input+".gone", 0, 10, 10, 1)
	n.put(w, missing)
	n.await(t, w, succeeded)
	b, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(b), "quince") {
		t.Errorf("map-only output %q %v", b, err)
	}
	if s := n.await(t, missing, failed); s.GetCause() != droverv1.Cause_CAUSE_INPUT || !strings.Contains(s.GetMessage(), ".gone") {
		t.Errorf("missing input: %s %q", s.GetCause(), s.GetMessage())
	}
}

func outputKey(k *droverv1.AttemptKey) shuffle.OutputKey {
	return shuffle.OutputKey{Job: k.GetJob(), Stage: k.GetStage(), Task: k.GetTask(), Attempt: k.GetAttempt(), Run: k.GetRun()}
}

func TestShuffleNeedsTheToken(t *testing.T) {
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	input, length, _ := writeText(t, 100)
	w := mapTask(0, input, 0, length, length, 2)
	n.put(w)
	n.await(t, w, succeeded)
	web := &http.Client{Transport: &http.Transport{DialContext: unixhttp.DialContext(&net.Dialer{})}}
	defer web.CloseIdleConnections()
	res, err := web.Get("http://" + unixhttp.Host(n.address) + shuffle.Path(outputKey(w.GetKey()), 0))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", res.Status)
	}
	c := &shuffle.Client{HTTP: web, Scheme: "http", Token: "secret"}
	got, err := c.Fetch(context.Background(), n.address, outputKey(w.GetKey()), 1, filepath.Join(t.TempDir(), "p"))
	if err != nil || got.Range.Length == 0 {
		t.Errorf("with the token: %+v %v", got, err)
	}
}

// After many concurrent plain processes there is no process, folder or record left.
func TestManyProcesses(t *testing.T) {
	count := int32(100)
	if os.Getenv("DROVER_SOAK") != "" {
		count = 1000
	}
	n := newTestNode(t, nil)
	onProcesses(t, n)
	n.start()
	var all []*droverv1.WantedAttempt
	for i := range count {
		all = append(all, groupTask(i, "true"))
	}
	n.put(all...)
	for _, w := range all {
		n.await(t, w, succeeded)
	}
	n.remove(all...)
	for _, w := range all {
		n.await(t, w, gone)
	}
	n.checkNothingLeft()
	n.stopDaemon()
	s, err := store.Open(filepath.Join(n.config.Data, "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	records, err := s.Records()
	wanted, werr := s.Wanted()
	if len(records) != 0 || len(wanted) != 0 || err != nil || werr != nil {
		t.Errorf("%d records, %d wanted attempts left, %v %v", len(records), len(wanted), err, werr)
	}
}

// BenchmarkTask measures one plain command from its wanted message to the report of
// its end, sequentially.
func BenchmarkTask(b *testing.B) {
	n := newTestNode(b, nil)
	onProcesses(b, n)
	n.start()
	for i := 0; b.Loop(); i++ {
		w := groupTask(int32(i), "true")
		n.put(w)
		n.await(b, w, succeeded)
		n.remove(w)
	}
}

// BenchmarkTasks measures batches of 200 concurrent tasks, in tasks per second.
func BenchmarkTasks(b *testing.B) {
	n := newTestNode(b, nil)
	onProcesses(b, n)
	n.start()
	const batch = 200
	for i := 0; b.Loop(); i++ {
		var all []*droverv1.WantedAttempt
		for k := range int32(batch) {
			all = append(all, groupTask(int32(i)*batch+k, "true"))
		}
		n.put(all...)
		for _, w := range all {
			n.await(b, w, succeeded)
		}
		n.remove(all...)
	}
	b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "tasks/s")
}

// On a machine without cgroups, plain processes can be frozen by signals, and
// there are no other levels.
func TestProbeOnProcesses(t *testing.T) {
	b := newTestNode(t, nil)
	onProcesses(t, b)
	b.config.Probe = true
	b.start()
	b.mu.Lock() // its first registration: no task may be placed beside the probe
	n := b.node
	b.mu.Unlock()
	if len(n.GetLevels()) != 2 || n.GetLevels()[1] != droverv1.Level_LEVEL_FROZEN || n.GetSpeeds().GetFreezeUs() <= 0 {
		t.Errorf("levels %v, speeds %v", n.GetLevels(), n.GetSpeeds())
	}
	if notes := strings.Join(n.GetLevelNotes(), "; "); !strings.Contains(notes, "swapped: ") || !strings.Contains(notes, "checkpointed: ") {
		t.Errorf("notes %q", notes)
	}
	b.checkNothingLeft()
	b.stopDaemon() // the next daemon reuses the result
	b.start()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.node.GetLevels()) != 2 {
		t.Errorf("after a restart it first registers with %v", b.node.GetLevels())
	}
}

// reluctant is a driver that cannot freeze for a while, as on a machine full of other work.
type reluctant struct {
	*process.Driver
	failures atomic.Int32 // that are still to come
}

func (d *reluctant) Freeze(ctx context.Context, id string) error {
	if d.failures.Add(-1) >= 0 {
		return fault.New(fault.Unavailable, "task %s: its processes do not stop", id)
	}
	return d.Driver.Freeze(ctx, id)
}

// A level that fails once for a reason that passes is probed again; one that goes on failing is not
// barred from the daemons that follow.
func TestAnUnluckyProbeBarsNoLevel(t *testing.T) {
	b := newTestNode(t, nil)
	onProcesses(t, b)
	d := &reluctant{Driver: b.config.Driver.(*process.Driver)}
	b.config.Driver, b.config.Probe = d, true
	levels := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.node.GetLevels())
	}
	d.failures.Store(probeTries)
	b.start()
	if n := levels(); n != 1 {
		t.Errorf("%d levels though none but running works", n)
	}
	b.stopDaemon()
	d.failures.Store(probeTries - 1)
	b.start()
	if n := levels(); n != 2 {
		t.Errorf("%d levels after freezing works again, want 2", n)
	}
	b.checkNothingLeft()
}

// A task of two processes is frozen and thawed.
func TestFreezeProcesses(t *testing.T) {
	b := newTestNode(t, nil)
	onProcesses(t, b)
	b.start()
	w := groupTask(0, "sh", "-c", "(i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done) & wait")
	b.put(w)
	b.await(t, w, running)
	poll(t, "output", func() bool { return b.countLogLines(w) > 3 })
	b.requestLevel(w, levelFrozen)
	b.awaitLevel(w, levelFrozen)
	b.awaitNotCounting(w)
	b.requestLevel(w, levelCheckpointed)
	if s := b.awaitRefusal(w, levelCheckpointed); s.GetLevel() != levelFrozen || !strings.Contains(s.GetLevelNote(), "no cgroups") && !strings.Contains(s.GetLevelNote(), "cannot dump") {
		t.Errorf("at %s, %q", s.GetLevel(), s.GetLevelNote())
	}
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	from := b.countLogLines(w)
	poll(t, "more output", func() bool { return b.countLogLines(w) > from+3 })
}

// The time of a helper is that of all its starts, and goes on while it works.
func TestTimeOfAHelper(t *testing.T) {
	h := &helperState{work: task.WorkBusy, began: 3 * time.Second, took: time.Second}
	if got := h.elapsed(5 * time.Second); got != 3*time.Second {
		t.Errorf("while it works: %s", got)
	}
	h.work = task.WorkDone
	if got := h.elapsed(9 * time.Second); got != time.Second {
		t.Errorf("when it is done: %s", got)
	}
}
