package simcluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/runtime/fake"
)

// wordCount is a job that counts words, from files in a folder that all machines share to files there. Its tasks
// are the real harness: see world.runHarness.
type wordCount struct {
	texts    []string      // of the files, each the input of a map task
	mapTime  time.Duration // how long a map task works before it reads
	partTime time.Duration // the same of a reduce task

	failing  string // the stage whose tasks fail in their first attempts; "": none
	twins    bool   // both attempts of the first of four reduces end at one instant, while the last one runs on
	full     bool   // each task takes a node, and all are suspended when a map is done: see disturb
	lateLoss bool   // the outputs on a node are lost, and a node is late to say so: see disturb
	breaks   bool   // the leader crashes when the result is there, and before it is told so: see disturb
}

// shared is the folder that all machines share.
func (c *cluster) shared() string { return filepath.Join(c.dir, "files") }

// harnessPath is the harness in containers.
const harnessPath = "/.drover/drover"

// newWordCount draws a job of that kind. Of so many of them six have trouble.
func (p *plan) newWordCount(r *rand.Rand, i, of int) plannedJob {
	w := &wordCount{mapTime: between(r, lease/100, lease), partTime: between(r, lease/100, lease)}
	for range 1 + r.IntN(3) {
		words := make([]string, 1+r.IntN(40))
		for k := range words {
			words[k] = strconv.Itoa(r.IntN(20)) + []string{" ", "\n"}[r.IntN(2)]
		}
		w.texts = append(w.texts, strings.Join(words, "")+"\n")
	}
	need := jobspec.Resources{CPU: int64(500 * (1 + r.IntN(4))), Memory: 32 << 20, IO: 1 << 20}
	j := plannedJob{at: p.instant(r), wordCount: w, spec: &jobspec.Job{Name: fmt.Sprint("w", i), Tenant: wordTenant, Stages: []jobspec.Stage{
		{Name: "count", Kind: jobspec.KindMap, Builtin: []string{"wordcount"}, Resources: need},
		{Name: "sum", Kind: jobspec.KindReduce, Builtin: []string{"sum"}, Combiner: r.IntN(2) == 0, Tasks: 1 + r.IntN(2), After: []string{"count"}, SlowStart: []float64{0, 0.3}[r.IntN(2)], Resources: need}}}}
	if s := &j.spec.Stages[1]; s.Tasks > 1 && r.IntN(2) == 0 {
		s.PartitionKeys = []string{"14"} // a total order instead of the hash
	}
	switch r.IntN(6) {
	case 0:
		j.stopAt = j.at + between(r, 50*time.Millisecond, 4*lease)
	case 1:
		j.stopsAt = "job.committing"
	}
	p.addTrouble(r, j, of)
	if w.full { // a stop would end what waits for each other
		j.stopAt, j.stopsAt = 0, ""
	}
	return j
}

// addTrouble draws what else happens to a job that counts words.
func (p *plan) addTrouble(r *rand.Rand, j plannedJob, of int) {
	w, maps, reduces := j.wordCount, &j.spec.Stages[0], &j.spec.Stages[1]
	switch r.IntN(of) {
	case 0:
		w.failing = reduces.Name
	case 1:
		w.failing = maps.Name
	case 2:
		w.twins, w.partTime = true, min(w.partTime, lease/2)
		reduces.Tasks, reduces.PartitionKeys, reduces.Resources.CPU = 4, nil, 500
	case 3:
		w.full, w.mapTime = true, max(w.mapTime, lease/2)
		for len(w.texts) <= p.machines { // the last map runs when the others are done
			w.texts = append(w.texts, w.texts[0])
		}
		maps.Resources.CPU, reduces.Resources.CPU = nodeCPU, nodeCPU
		reduces.SlowStart, reduces.Tasks, reduces.PartitionKeys = 0.2, p.machines+1, nil // after one map
	case 4:
		w.breaks = true
	case 5:
		if p.machines > 2 {
			w.lateLoss, w.mapTime = true, min(w.mapTime, lease/20)
			reduces.Tasks, reduces.PartitionKeys, reduces.Resources.CPU = 2*maxMachines, nil, nodeCPU/2 // on all nodes
		}
	}
}

// inputOf and outputOf return the folders of a job that counts words.
func (c *cluster) inputOf(name string) string  { return filepath.Join(c.shared(), "in-"+name) }
func (c *cluster) outputOf(name string) string { return filepath.Join(c.shared(), "out-"+name) }

// prepareFiles writes the inputs of the jobs that count words, and tells the jobs where they are.
func (c *cluster) prepareFiles(p *plan) {
	for _, j := range p.jobs {
		if j.wordCount == nil {
			continue
		}
		in := c.inputOf(j.spec.Name)
		if err := os.MkdirAll(in, 0o777); err != nil {
			c.t.Fatal(err)
		}
		for i, text := range j.wordCount.texts {
			if err := os.WriteFile(filepath.Join(in, fmt.Sprint(i)), []byte(text), 0o666); err != nil {
				c.t.Fatal(err)
			}
		}
		j.spec.Input = &jobspec.Input{Paths: []string{"file://" + in}}
		j.spec.Output = &jobspec.Output{Path: "file://" + c.outputOf(j.spec.Name)}
		c.world.counts[j.spec.Name] = j.wordCount
	}
}

// wordTenant is the tenant of the jobs that count words. It has no uid, so its tasks run as the daemon's, which
// lets the helpers that fetch and upload for them run inside the daemon.
const wordTenant = "words"

// applyTenant makes the tenant, until it is accepted.
func (c *cluster) applyTenant() {
	for {
		_, err := call(c.client.ApplyTenants, &droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: wordTenant, Weight: 1, Submit: []string{"*"}, Read: []string{"*"}}}})
		if err == nil {
			return
		}
		c.log("user: tenant %s: %v", wordTenant, err)
		if !c.mayRepeat("tenant %s is not accepted", wordTenant) {
			return
		}
	}
}

// sortMemory is enough for all words of a task. More would have to be cleared for each, as it need not in a process
// of its own.
const sortMemory = 64 << 10

// runHarness is the program of the tasks of map and reduce stages: it works for a while in which it can be suspended,
// waits for its input, and then runs the real harness in one instant. It returns the exit code.
func (w *world) runHarness(ctx context.Context, p *fake.Process) int {
	run := &programRun{proc: p, id: p.Spec.ID, live: true}
	w.begin(run)
	job := w.counts[p.Spec.Labels["drover.job"]]
	d := job.mapTime
	if p.Spec.Labels["drover.stage"] == "sum" {
		if d = job.partTime; job.twins && indexOf(run.id) == 3 {
			d += 4 * lease
		}
	}
	d += time.Duration(indexOf(run.id)) * sibling
	twin := w.twinOf(run.id, job)
	var task harnessTask
	defer task.input.Close()
	code := 137
	for passed := time.Duration(0); w.awaitThawed(ctx, run) == nil; passed += otherStep {
		m := w.machineOf(run)
		if m.kernel.enter(run.id) {
			spec, err := task.read(m, run.id)
			if err == nil && passed >= d && task.isInputThere() && twin.ready(passed) {
				if job.failing == p.Spec.Labels["drover.stage"] && attemptOf(run.id) == 1 {
					code = 1
				} else {
					spec.SortMemory = min(spec.SortMemory, sortMemory)
					code = harness.Run(ctx, spec, nil, io.Discard)
				}
				m.kernel.leave(run.id)
				break
			}
			m.kernel.leave(run.id)
			if err != nil {
				w.c.violated("attempt %s: %v", run.id, err)
				break
			}
		}
		twin.pause(ctx, min(otherStep, max(d-passed, otherStep/5)))
	}
	return w.end(run, "harness", code)
}

// harnessTask is what a harness was told, by the place at which it was told so.
type harnessTask struct {
	path  string
	info  os.FileInfo
	spec  *mapreduce.TaskSpec
	input mapreduce.JournalReader // of its input
}

// read returns what the daemon wrote for the harness of an attempt: decoded again only if the file is another one.
func (t *harnessTask) read(m *machine, id string) (*mapreduce.TaskSpec, error) {
	path := filepath.Join(m.data, "attempts", id, "task", ".drover", "spec.json")
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if t.path == path && os.SameFile(t.info, info) && t.info.ModTime().Equal(info.ModTime()) && t.info.Size() == info.Size() {
		return t.spec, nil
	}
	spec, err := m.taskSpec(id)
	if err == nil {
		t.input.Close()
		*t = harnessTask{path: path, info: info, spec: spec}
		if spec.Kind == mapreduce.KindReduce {
			t.input.Path = spec.Shuffle.Journal
		} else {
			t.input.Path = spec.Input.File + mapreduce.JournalSuffix
		}
	}
	return spec, err
}

// taskSpec returns what the daemon wrote for the harness of an attempt, with paths of the host.
func (m *machine) taskSpec(id string) (*mapreduce.TaskSpec, error) {
	folder := filepath.Join(m.data, "attempts", id, "task")
	s, err := mapreduce.ReadSpec(filepath.Join(folder, ".drover", "spec.json"))
	if err != nil {
		return nil, err
	}
	host := func(path *string) {
		if below, ok := strings.CutPrefix(*path, "/task"); ok {
			*path = folder + below
		}
	}
	for _, path := range []*string{&s.WorkDir, &s.TempDir, &s.Result, &s.Progress} {
		host(path)
	}
	if s.Input != nil {
		host(&s.Input.File)
	}
	if s.Shuffle != nil {
		host(&s.Shuffle.Dir)
		host(&s.Shuffle.Journal)
	}
	if s.MapOutput != nil {
		host(&s.MapOutput.Data)
		host(&s.MapOutput.Index)
	}
	if s.Output != nil {
		host(&s.Output.Path)
	}
	return s, nil
}

// isInputThere reports whether all that the harness reads has arrived, or never will.
func (t *harnessTask) isInputThere() bool {
	if _, err := t.input.Poll(); err != nil {
		return true // the harness says what is wrong
	}
	return t.input.Done || t.input.FailReason != ""
}

// checkOutput checks the result of a job that counts words: all of it once if the job succeeded, otherwise none
// that counts as complete.
func (c *cluster) checkOutput(j plannedJob, state droverv1.JobState) {
	dir := c.outputOf(j.spec.Name)
	_, missing := os.Stat(filepath.Join(dir, "_SUCCESS"))
	if state != droverv1.JobState_JOB_STATE_SUCCEEDED && missing != nil {
		return
	}
	if state != droverv1.JobState_JOB_STATE_SUCCEEDED {
		c.violated("job %s is %s, and its output is complete", j.spec.Name, state)
	}
	if missing != nil {
		c.violated("job %s has succeeded without its output: %v", j.spec.Name, missing)
		return
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		c.violated("output of %s: %v", j.spec.Name, err)
		return
	}
	var lines, names []string
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			c.violated("output of %s: %v", j.spec.Name, err)
		}
		names = append(names, f.Name())
		lines = append(lines, strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })...)
	}
	if len(j.spec.Stages[1].PartitionKeys) > 0 && !slices.IsSorted(lines) {
		c.violated("job %s writes %q, want them in order", j.spec.Name, lines)
	}
	if n := j.spec.Stages[1].Tasks; len(files) != n+1 {
		c.violated("job %s has the files %v, want one of each of %d reduces and _SUCCESS", j.spec.Name, names, n)
	}
	words := map[string]int{}
	for _, text := range j.wordCount.texts {
		for _, word := range strings.Fields(text) {
			words[word]++
		}
	}
	var want []string
	for word := range maps.Keys(words) {
		want = append(want, fmt.Sprintf("%s\t%d", word, words[word]))
	}
	slices.Sort(lines)
	slices.Sort(want)
	if !slices.Equal(lines, want) {
		c.violated("job %s counts %q, want %q", j.spec.Name, lines, want)
	}
}

// unfinishedOutputs returns the folders of outputs that are not complete. One of a submission that was not accepted may
// remain, if its coordinator died: it is empty.
func (c *cluster) unfinishedOutputs() (left []string) {
	all, err := os.ReadDir(c.shared())
	if err != nil && !os.IsNotExist(err) {
		return []string{err.Error()}
	}
	for _, f := range all {
		if strings.HasPrefix(f.Name(), "in-") || strings.HasPrefix(f.Name(), "out-") {
			continue
		}
		_ = filepath.WalkDir(filepath.Join(c.shared(), f.Name()), func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				left = append(left, "there is "+path)
			}
			return nil // it may be removed meanwhile
		})
	}
	return left
}

// enter begins an instant in which a program acts and is not frozen. It reports whether it may.
func (k *kernel) enter(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.frozen[id] != nil {
		return false
	}
	if k.acting[id] == nil {
		k.acting[id] = &sync.WaitGroup{}
	}
	k.acting[id].Add(1)
	return true
}

// leave ends the instant.
func (k *kernel) leave(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.acting[id].Done()
}

// awaitInstant waits until a program does not act.
func (k *kernel) awaitInstant(id string) {
	k.mu.Lock()
	acting := k.acting[id]
	k.mu.Unlock()
	if acting != nil {
		acting.Wait()
	}
}

// twin is an attempt of a task of which two are to end at one instant.
type twin struct {
	first bool
	other chan struct{} // closed when the other one ends; nil for a task without twins
}

// twinsLimit is how long a first attempt waits for a second one, which is not made where there is no node for it.
const twinsLimit = 4 * lease

// twinOf returns what the attempt of a job is of two.
func (w *world) twinOf(id string, job *wordCount) *twin {
	t := &twin{first: attemptOf(id) == 1}
	if parts := strings.Split(id, "."); !job.twins || parts[1] != "1" || parts[2] != "0" || attemptOf(id) > 2 {
		return t
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.other = w.twins[taskOf(id)]; t.other == nil {
		t.other = make(chan struct{})
		w.twins[taskOf(id)] = t.other
	}
	return t
}

// ready reports whether the attempt may end.
func (t *twin) ready(passed time.Duration) bool {
	if t.other == nil {
		return true
	}
	select {
	case <-t.other:
		return true
	default:
	}
	if !t.first {
		close(t.other)
	}
	return !t.first || passed >= twinsLimit
}

// pause waits, until the other one ends at most.
func (t *twin) pause(ctx context.Context, d time.Duration) {
	if !t.first || t.other == nil {
		pause(ctx, d)
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.other:
		t.other = nil
	case <-ctx.Done():
	}
}
