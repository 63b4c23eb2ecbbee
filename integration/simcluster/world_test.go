package simcluster

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/runtime/fake"
)

// world observes the programs of all machines: what really ran, whatever the
// coordinators and daemons say of it.
type world struct {
	c *cluster

	mu      sync.Mutex
	runs    map[string]*programRun   // by attempt; of one that moved, by its last run
	started map[string]bool          // attempts
	newest  map[string]string        // exclusive task -> the newest of its attempts that have acted
	leaders map[string]string        // by term
	counts  map[string]*wordCount    // jobs that count words, by name
	files   map[string]string        // of the tasks of jobs that have one, by the job's name
	twins   map[string]chan struct{} // by task
	after   afterRestore
}

// programRun is one start of a program, which may go on elsewhere.
type programRun struct {
	proc      *fake.Process
	id        string // of the attempt, when it last did something
	exclusive bool
	live      bool
	succeeded bool
	unknown   bool // to the coordinator, which was restored from an archive
}

func newWorld(c *cluster) *world {
	return &world{c: c, runs: map[string]*programRun{}, started: map[string]bool{}, newest: map[string]string{}, leaders: map[string]string{}, counts: map[string]*wordCount{}, files: map[string]string{}, twins: map[string]chan struct{}{}}
}

// leads records that a server decides in a term.
func (w *world) leads(id, term string) {
	w.mu.Lock()
	other, ok := w.leaders[term]
	w.leaders[term] = id
	w.mu.Unlock()
	if ok && other != id {
		w.c.violated("%s and %s lead in term %s", other, id, term)
	}
}

// terms returns in how many terms a server has led.
func (w *world) terms() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leaders)
}

// Steps of a program in which it can be frozen.
const (
	exclusiveStep = 50 * time.Millisecond
	otherStep     = 500 * time.Millisecond
)

// command returns the argv of a program that runs for d and fails in the first
// attempts of a task. The stage before has a number of tasks, 0 for no such stage.
func command(d time.Duration, failures int, exclusive bool, before int) []string {
	return []string{"work", d.String(), strconv.Itoa(failures), strconv.FormatBool(exclusive), strconv.Itoa(before)}
}

// work is the program of all tasks; see command.
func (w *world) work(ctx context.Context, p *fake.Process) int {
	d, err := time.ParseDuration(p.Spec.Args[1])
	failures, err2 := strconv.Atoi(p.Spec.Args[2])
	before, err3 := strconv.Atoi(p.Spec.Args[4])
	if err != nil || err2 != nil || err3 != nil {
		return 125
	}
	d += time.Duration(indexOf(p.Spec.ID)) * sibling
	run := &programRun{proc: p, id: p.Spec.ID, exclusive: p.Spec.Args[3] == "true", live: true}
	w.begin(run)
	w.checkFile(run)
	if n := w.countSucceeded(run.id); before > 0 && n != before {
		w.c.violated("attempt %s starts when %d of %d tasks of the stage before have succeeded", run.id, n, before)
	}
	step := otherStep
	if run.exclusive {
		step = exclusiveStep
	}
	code := 137
	for passed := time.Duration(0); ; passed += step {
		if w.awaitThawed(ctx, run) != nil {
			break
		}
		if run.exclusive {
			w.act(run.id, w.isUnknown(run))
		}
		if passed >= d {
			w.checkFile(run)
			if code = 0; attemptOf(run.id) <= failures {
				code = 1
			}
			break
		}
		pause(ctx, min(step, d-passed))
	}
	return w.end(run, "program", code)
}

// pause waits, until the context ends at most.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// end records the exit code of a program and returns it.
func (w *world) end(run *programRun, what string, code int) int {
	w.mu.Lock()
	run.live, run.succeeded = false, code == 0
	if run.unknown && code == 137 {
		w.after.killed = append(w.after.killed, run)
	}
	w.mu.Unlock()
	w.c.log("%s of %s ended with %d", what, run.id, code)
	return code
}

// sibling is how much longer a task runs than the one before it of its stage, so that they do not end at one instant.
const sibling = 100 * time.Microsecond

// indexOf returns the number of an attempt's task in its stage.
func indexOf(id string) int {
	n, err := strconv.Atoi(strings.Split(id, ".")[2])
	if err != nil {
		panic("attempt " + id)
	}
	return n
}

// taskOf returns the task of an attempt "job.stage.task.attempt.run".
func taskOf(id string) string { return strings.Join(strings.Split(id, ".")[:3], ".") }

func attemptOf(id string) int {
	n, err := strconv.Atoi(strings.Split(id, ".")[3])
	if err != nil {
		panic("attempt " + id)
	}
	return n
}

func runOf(id string) int {
	n, err := strconv.Atoi(strings.Split(id, ".")[4])
	if err != nil {
		panic("attempt " + id)
	}
	return n
}

func (w *world) begin(run *programRun) {
	w.mu.Lock()
	again := w.started[run.id]
	run.unknown = w.after.isUnknown(run.id)
	w.started[run.id], w.runs[run.id] = true, run
	w.mu.Unlock()
	w.c.log("%s: program of %s starts", w.machineOf(run).name, run.id)
	if again {
		w.c.violated("attempt %s was started twice", run.id)
	}
}

// machineOf returns the machine that a program is on, or was on when it was dumped.
func (w *world) machineOf(run *programRun) *machine {
	at := run.proc.Place().Engine
	for _, m := range w.c.machines {
		if m.engine == at {
			return m
		}
	}
	return nil
}

// awaitThawed waits until nothing holds a program, wherever it is, and takes note of where that is; an
// error means that it is killed.
func (w *world) awaitThawed(ctx context.Context, run *programRun) error {
	for {
		at, m := run.proc.Place(), w.machineOf(run)
		began := time.Now()
		if err := run.proc.Gate(ctx); err != nil {
			return err
		}
		if err := m.kernel.gate(ctx, at.ID); err != nil {
			return err
		}
		if time.Now().After(began) {
			w.c.log("%s: program of %s was suspended", m.name, at.ID)
		}
		if run.proc.Place() != at || at.Dump {
			continue
		}
		if at.ID != run.id {
			w.c.log("%s: program of %s goes on as %s", m.name, run.id, at.ID)
			w.move(run, at.ID)
		}
		if w.mustWait(run, m) {
			continue
		}
		return nil
	}
}

// move gives a program the attempt's next run.
func (w *world) move(run *programRun, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.runs, run.id)
	run.id, w.runs[id] = id, run
}

// countSucceeded returns how many tasks of the stage before an attempt's have
// succeeded.
func (w *world) countSucceeded(id string) int {
	parts := strings.Split(id, ".")
	stage, err := strconv.Atoi(parts[1])
	if err != nil {
		panic("attempt " + id)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	unknown := w.runs[id] != nil && w.runs[id].unknown // it may go by what has succeeded after the archive was saved
	tasks := map[string]bool{}
	for other, r := range w.runs {
		if r.succeeded && (unknown || !r.unknown || w.after.mayCount(other)) && strings.HasPrefix(other, parts[0]+"."+strconv.Itoa(stage-1)+".") {
			tasks[taskOf(other)] = true
		}
	}
	return len(tasks)
}

// act records that a program of an exclusive task does something now. An attempt
// must not act after a newer one of the same task has, whether it acted before that or not. One that is unknown to a
// restored coordinator must not act after any has that is known to it.
func (w *world) act(id string, unknown bool) {
	task := taskOf(id)
	w.mu.Lock()
	newest := w.newest[task]
	unknown = unknown && (newest == "" || !w.after.hasMoved(id))
	old := newest != "" && (unknown || isBefore(id, newest))
	if unknown && !old {
		task = unknownTask(task)
		newest = w.newest[task]
		old = newest != "" && isBefore(id, newest)
	}
	if !old {
		w.newest[task] = id
	}
	w.mu.Unlock()
	if old {
		w.c.violated("exclusive task %s: attempt %s acts after %s has", task, id, newest)
	}
}

// isBefore reports whether an attempt of a task, with its run, is older than another one.
func isBefore(a, b string) bool {
	return cmp.Or(cmp.Compare(attemptOf(a), attemptOf(b)), cmp.Compare(runOf(a), runOf(b))) < 0
}

// exclusiveOn returns the live attempts of exclusive tasks on a machine.
func (w *world) exclusiveOn(m *machine) (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.runs {
		if at := r.proc.Place(); at.Engine == m.engine && !at.Dump && r.exclusive && r.live {
			ids = append(ids, at.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// hasSucceeded reports whether the program of an attempt ended with 0.
func (w *world) hasSucceeded(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[id]
	return r != nil && r.succeeded && (!r.unknown || w.after.mayCount(id))
}
