package simcluster

import (
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
	runs    map[string]*programRun // by attempt
	active  map[string]string      // exclusive task -> the attempt that acted last
	retired map[string]bool        // attempts of exclusive tasks after which another one has acted
	leaders map[string]string      // by term
}

// programRun is one start of a program.
type programRun struct {
	machine   *machine
	exclusive bool
	live      bool
	succeeded bool
}

func newWorld(c *cluster) *world {
	return &world{c: c, runs: map[string]*programRun{}, active: map[string]string{}, retired: map[string]bool{}, leaders: map[string]string{}}
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
func (w *world) work(ctx context.Context, m *machine, p *fake.Process) int {
	d, err := time.ParseDuration(p.Spec.Args[1])
	failures, err2 := strconv.Atoi(p.Spec.Args[2])
	before, err3 := strconv.Atoi(p.Spec.Args[4])
	if err != nil || err2 != nil || err3 != nil {
		return 125
	}
	id := p.Spec.ID
	run := &programRun{machine: m, exclusive: p.Spec.Args[3] == "true", live: true}
	w.begin(id, run)
	if n := w.countSucceeded(id); before > 0 && n != before {
		w.c.violated("attempt %s starts when %d of %d tasks of the stage before have succeeded", id, n, before)
	}
	step := otherStep
	if run.exclusive {
		step = exclusiveStep
	}
	code := 137
	for passed := time.Duration(0); ; passed += step {
		if m.kernel.gate(ctx, id) != nil {
			break
		}
		if run.exclusive {
			w.act(id)
		}
		if passed >= d {
			if code = 0; attemptOf(id) <= failures {
				code = 1
			}
			break
		}
		t := time.NewTimer(min(step, d-passed))
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	w.mu.Lock()
	run.live, run.succeeded = false, code == 0
	w.mu.Unlock()
	w.c.log("%s: program of %s ended with %d", m.name, id, code)
	return code
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

func (w *world) begin(id string, run *programRun) {
	w.mu.Lock()
	before := w.runs[id]
	w.runs[id] = run
	w.mu.Unlock()
	w.c.log("%s: program of %s starts", run.machine.name, id)
	if before != nil {
		w.c.violated("attempt %s was started twice, on %s and %s", id, before.machine.name, run.machine.name)
	}
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
	tasks := map[string]bool{}
	for other, r := range w.runs {
		if r.succeeded && strings.HasPrefix(other, parts[0]+"."+strconv.Itoa(stage-1)+".") {
			tasks[taskOf(other)] = true
		}
	}
	return len(tasks)
}

// act records that a program of an exclusive task does something now. An attempt
// must not act after another one of the same task has.
func (w *world) act(id string) {
	task := taskOf(id)
	w.mu.Lock()
	before, again := w.active[task], w.retired[id]
	if before != "" && before != id {
		w.retired[before] = true
	}
	w.active[task] = id
	w.mu.Unlock()
	if again {
		w.c.violated("exclusive task %s: attempt %s acts while %s does", task, id, before)
	}
}

// exclusiveOn returns the live attempts of exclusive tasks on a machine.
func (w *world) exclusiveOn(m *machine) (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, r := range w.runs {
		if r.machine == m && r.exclusive && r.live {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// hasSucceeded reports whether the program of an attempt ended with 0.
func (w *world) hasSucceeded(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[id] != nil && w.runs[id].succeeded
}
