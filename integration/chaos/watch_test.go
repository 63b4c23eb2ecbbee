package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// watchScript writes down, about three times a second, which attempts have processes that are not frozen: the time since
// the machine booted before and after the look, the attempt, its first process, its cgroup.freeze, cpu.max, memory.max, pids.max and io.max. It
// starts no process, which an emulated machine would feel. That time goes on while the machine stands still, and no step of
// the clock changes it.
const watchScript = `exec 9<>/run/chaos.never
cd /sys/fs/cgroup/drover/tasks
while :; do
  for a in *.*.*.*.*; do
    read -r from _ </proc/uptime
    { mapfile -t events <"$a/container/cgroup.events" && read -r pid <"$a/container/cgroup.procs" && read -r comm <"/proc/$pid/comm" && read -r freeze <"$a/container/cgroup.freeze" &&
      read -r cpu <"$a/cpu.max" && read -r mem <"$a/memory.max" && read -r pids <"$a/pids.max" && mapfile -t io <"$a/io.max" && read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
    read -r to _ </proc/uptime
    case $comm in runc* | crun*) continue;; esac # the engine, before it becomes the program
    fields=(${stat##*) })
    ((fields[28] & 1 << 8 || fields[6] & 0x404)) && continue # SIGKILL is pending, or the process exits: it leaves the frozen state to die
    case "${events[*]}" in *"populated 1"*"frozen 0"*) echo "$from $to $a ${comm// /_} $freeze $cpu $mem $pids ${io[*]}" >>/run/chaos.looks;; esac
  done
  read -r -t 0.3 -u 9 _
done`

// startWatch starts the watch of machine n, which ends with the machine.
func startWatch(ctx context.Context, n *testbed.Node) error {
	if _, err := n.Sh(ctx, "mkdir -p /sys/fs/cgroup/drover/tasks; rm -f /run/chaos.never; mkfifo /run/chaos.never"); err != nil {
		return err
	}
	_, err := n.Start(ctx, "/run/chaos.watch", "bash", "-c", watchScript)
	return err
}

// look is one line of the watch of a machine.
type look struct {
	machine        string
	attempt        attempt
	comm           string
	freezing       bool // somebody wants it frozen
	cpu, mem, pids string
	io             []string      // what is in the lines of io.max
	from, to       time.Duration // on the host, since the run began: the look was within
}

// lacks returns the limits that no step lifts and the look did not find, "" for none.
func (l look) lacks() string {
	mem, err := strconv.ParseInt(l.mem, 10, 64)
	switch {
	case err != nil || mem > taskMemory+mostOverhead:
		return "memory.max " + l.mem
	case l.pids == "max":
		return "pids.max max"
	}
	return ""
}

// limitedIO reports whether the look found the tasks' bandwidth in io.max, for reading and for writing, and no other.
func (l look) limitedIO() bool {
	limits := 0
	for _, v := range l.io {
		switch key, value, _ := strings.Cut(v, "="); {
		case key != "rbps" && key != "wbps":
		case value != ioMax:
			return false
		default:
			limits++
		}
	}
	return limits >= 2
}

// attempt is the name of an attempt on a machine.
type attempt struct {
	task    string // <job>.<stage>.<task>
	attempt int
	run     int
}

func (a attempt) before(b attempt) bool {
	return a.attempt < b.attempt || a.attempt == b.attempt && a.run < b.run
}

// job returns the number of the attempt's job.
func (a attempt) job() string {
	job, _, _ := strings.Cut(a.task, ".")
	return job
}

func parseAttempt(s string) (attempt, error) {
	p := strings.Split(s, ".")
	if len(p) != 5 {
		return attempt{}, fmt.Errorf("attempt %q", s)
	}
	k, err := strconv.Atoi(p[3])
	r, err2 := strconv.Atoi(p[4])
	return attempt{strings.Join(p[:3], "."), k, r}, errors.Join(err, err2)
}

// diskLeft returns the MiB that are free on the data disk of each machine that is up.
func (h *chaos) diskLeft() string {
	var all []string
	for k, n := range h.bed.Nodes {
		if h.booting[k+1] != nil {
			continue
		}
		mb, err := n.Sh(h.ctx, "df --output=avail -B1M /data | tail -1")
		if err != nil {
			h.Fatal(err)
		}
		all = append(all, n.Name+" "+strings.TrimSpace(mb))
	}
	return strings.Join(all, ", ")
}

// clock relates the time since a machine's boot to that of the host.
type clock struct{ least, most time.Duration } // host's minus machine's

// readWatch returns what the watch of a machine wrote since the last time, and what its clock was.
// A look is placed by this clock and the last one, since the machine's may drift between.
func readWatch(ctx context.Context, n *testbed.Node, began time.Time, last *clock) ([]look, *clock, error) {
	before := time.Since(began)
	text, err := n.Sh(ctx, "read -r up _ </proc/uptime; echo $up; touch /run/chaos.looks; mv /run/chaos.looks /run/chaos.read; cat /run/chaos.read")
	after := time.Since(began)
	if err != nil {
		return nil, last, err
	}
	s := bufio.NewScanner(strings.NewReader(text))
	s.Scan()
	up, err := seconds(s.Text())
	if err != nil {
		return nil, last, err
	}
	// /proc/uptime is cut off to hundredths.
	now := &clock{before - up - 10*time.Millisecond, after - up}
	span := *now
	if last != nil {
		span = clock{min(now.least, last.least), max(now.most, last.most)}
	}
	var all []look
	for s.Scan() {
		l, err := parseLook(n.Name, s.Text(), span)
		if err != nil {
			return all, now, err
		}
		all = append(all, l)
	}
	return all, now, nil
}

// parseLook parses a line of the watch of a machine with that clock.
func parseLook(machine, line string, span clock) (look, error) {
	f := strings.Fields(line)
	if len(f) < 9 {
		return look{}, fmt.Errorf("%s: watch: %q", machine, line)
	}
	from, err1 := seconds(f[0])
	to, err2 := seconds(f[1])
	a, err3 := parseAttempt(f[2])
	if err := errors.Join(err1, err2, err3); err != nil {
		return look{}, fmt.Errorf("%s: watch: %q: %w", machine, line, err)
	}
	return look{machine: machine, attempt: a, comm: f[3], freezing: f[4] != "0", cpu: f[5] + " " + f[6], mem: f[7], pids: f[8], io: f[9:],
		from: from + span.least, to: to + span.most + 10*time.Millisecond}, nil
}

func seconds(s string) (time.Duration, error) {
	v, err := strconv.ParseFloat(s, 64)
	return time.Duration(v * float64(time.Second)), err
}

// wrongLimit is how long, and in how many looks, a program may have other limits on CPU and I/O than its task's, while nobody
// wants it frozen. Nothing lifts the limits of a task that was never to be suspended but a freeze, and the looks at one
// cannot all fall between the steps of several. Those of one that was are lifted around a checkpoint and a restore, and the
// limit on CPU is startCPUMax around a start, steps of at most a minute, which may be tried again: a start may then find
// that the program runs.
const (
	wrongLimit = 3 * time.Second
	wrongLooks = 3
	stepsLimit = 2 * time.Minute
)

// longestGap is the time between two looks at an attempt that acts all the time. After a longer one it was frozen, or
// checkpointed, as which it had other limits before, and has them again while it is restored.
const longestGap = 5 * time.Second

// wrongTime is a time in which all looks at an attempt found other limits than its task's, the same.
type wrongTime struct {
	cpu         string
	since, last time.Duration
	looks       int
}

// acts is when an attempt was seen to act.
type acts struct {
	machine  string
	looks    int
	from, to time.Duration // it acted at or before to, and at or after from
}

// stand is a time in which a machine stands still, with the moment after it, on the host.
type stand struct{ from, to time.Duration }

// longestMoment is how long after a machine goes on, which may be after the end of its lease, a program of it may act: it may have
// had the processor when the machine was stopped, and has it until an interrupt lets a watchdog run.
const longestMoment = time.Second

// watch has what all machines' watches said. Jobs have their numbers, and tasks begin with that of their job.
type watch struct {
	mu        sync.Mutex
	clocks    map[string]*clock
	looks     int
	exclusive map[string]bool              // of each job that was accepted: whether its tasks are exclusive
	suspended map[string]bool              // tasks that were to be suspended
	wrong     map[attempt]wrongTime        // of those that have other limits than their task's
	acted     map[string]map[attempt]*acts // of each task
	stands    map[string]stand             // the last of each machine
}

// standsStill says that a machine is stopped, at a time on the host.
func (w *watch) standsStill(machine string, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stands[machine] = stand{at, math.MaxInt64}
}

// goesOn says that a machine that stood still goes on since a time on the host, or shortly before.
func (w *watch) goesOn(machine string, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stands[machine] = stand{w.stands[machine].from, at + longestMoment}
}

// accept adds a job that was accepted.
func (w *watch) accept(job string, exclusive bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exclusive[job] = exclusive
}

// suspend adds a task that is to be suspended.
func (w *watch) suspend(task string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.suspended[task] = true
}

// limited reports whether a look found the limits of its task. The job may not be known yet.
func (w *watch) limited(l look) bool {
	exclusive, known := w.exclusive[l.attempt.job()]
	return l.limitedIO() && (l.cpu == cpuMax && !(known && exclusive) || l.cpu == exclusiveCPUMax && !(known && !exclusive))
}

// add adds looks. It returns what is wrong with them: limits that are missing.
func (w *watch) add(looks []look) error {
	var all []error
	for _, l := range looks {
		w.looks++
		limited, suspended := w.limited(l), w.suspended[l.attempt.task]
		if lacks := l.lacks(); lacks != "" {
			all = append(all, fmt.Errorf("%s: %s of %v has %s", l.machine, l.comm, l.attempt, lacks))
		}
		if !limited && w.isWrong(l, suspended) {
			all = append(all, fmt.Errorf("%s: %s of %v has cpu.max %s, io.max %q", l.machine, l.comm, l.attempt, l.cpu, l.io))
		}
		if limited || l.freezing {
			delete(w.wrong, l.attempt)
		}
		// In a cgroup that is to be frozen no program runs on: it stops where it would return from the kernel. That may be
		// long after, where it waits for a processor: the time in which a machine stood still counts as used by the program that
		// had the processor then, and others go first until that is repaid. With other limits a program may stand still too, in
		// the hands of the engine or of criu. It acts if nothing explains them.
		if !l.freezing && (limited || !suspended && l.cpu != startCPUMax) {
			w.addAct(l)
		}
	}
	return errors.Join(all...)
}

// isWrong adds a look at an attempt with other limits than its task's. It reports whether that has lasted too long.
func (w *watch) isWrong(l look, suspended bool) bool {
	x, ok := w.wrong[l.attempt]
	if !ok || l.from-x.last > longestGap || x.cpu != l.cpu {
		x = wrongTime{cpu: l.cpu, since: l.to}
	}
	x.last, x.looks = l.to, x.looks+1
	w.wrong[l.attempt] = x
	limit := wrongLimit
	if suspended || l.cpu == startCPUMax {
		limit = stepsLimit
	}
	return !l.freezing && x.looks >= wrongLooks && l.from-x.since > limit
}

// addAct adds that an attempt acts.
func (w *watch) addAct(l look) {
	of := w.acted[l.attempt.task]
	if of == nil {
		of = map[attempt]*acts{}
		w.acted[l.attempt.task] = of
	}
	x := of[l.attempt]
	if x == nil {
		x = &acts{machine: l.machine, from: math.MinInt64, to: l.to}
		of[l.attempt] = x
	}
	// The earliest end of a look and the latest beginning of one.
	x.looks, x.to = x.looks+1, min(x.to, l.to)
	if still := w.stands[l.machine]; l.to < still.from || l.from > still.to {
		x.from = max(x.from, l.from)
	}
}

// exclusiveTasks returns the tasks of exclusive jobs that were seen to act.
func (w *watch) exclusiveTasks() (all []string) {
	for task := range w.acted {
		if w.exclusive[attempt{task: task}.job()] {
			all = append(all, task)
		}
	}
	slices.Sort(all)
	return all
}

// actedTwice says which attempts of exclusive tasks acted after a later one had. It errs only in favour of the cluster:
// by what cannot be known of the order of two looks.
func (w *watch) actedTwice() error {
	var all []error
	for _, task := range w.exclusiveTasks() {
		for a, x := range w.acted[task] {
			for b, y := range w.acted[task] {
				if a.before(b) && y.to < x.from {
					all = append(all, fmt.Errorf("exclusive %s: attempt %d.%d acted on %s at %v or later, after attempt %d.%d on %s had by %v",
						task, a.attempt, a.run, x.machine, x.from, b.attempt, b.run, y.machine, y.to))
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(all...)
}

// exclusiveActs returns how many attempts of exclusive tasks were seen to act, and in how many looks.
func (w *watch) exclusiveActs() (attempts, looks int) {
	for _, task := range w.exclusiveTasks() {
		for _, x := range w.acted[task] {
			attempts, looks = attempts+1, looks+x.looks
		}
	}
	return attempts, looks
}

// sawNothing says which of these tasks, whose programs ran for many looks, no look found: a watch has ended.
func (w *watch) sawNothing(tasks []string) error {
	var all []error
	for _, task := range tasks {
		if len(w.acted[task]) == 0 {
			all = append(all, fmt.Errorf("%s has ended well, and no watch saw it act", task))
		}
	}
	if w.looks == 0 {
		all = append(all, errors.New("no watch saw anything act"))
	}
	return errors.Join(all...)
}

// readMachine reads the watch of one machine.
func (h *chaos) readMachine(ctx context.Context, n *testbed.Node) error {
	h.watch.mu.Lock()
	last := h.watch.clocks[n.Name]
	h.watch.mu.Unlock()
	looks, now, err := readWatch(ctx, n, h.began, last)
	h.watch.mu.Lock()
	defer h.watch.mu.Unlock()
	h.watch.clocks[n.Name] = now
	return errors.Join(err, h.watch.add(looks))
}

// readWatches reads the watches of all machines at once, and judges.
func (h *chaos) readWatches() {
	h.Helper()
	errs := make(chan error, len(h.bed.Nodes))
	for k, n := range h.bed.Nodes {
		if h.booting[k+1] != nil {
			errs <- nil
			continue
		}
		go func() { errs <- h.readMachine(h.ctx, n) }()
	}
	var all []error
	for range h.bed.Nodes {
		all = append(all, <-errs)
	}
	if err := errors.Join(append(all, h.watch.actedTwice())...); err != nil {
		h.Error(err)
	}
	h.run.Limits = h.watch.looks
	h.run.Attempts, h.run.Exclusive = h.watch.exclusiveActs()
}

func newWatch() *watch {
	return &watch{clocks: map[string]*clock{}, exclusive: map[string]bool{}, suspended: map[string]bool{}, wrong: map[attempt]wrongTime{},
		acted: map[string]map[attempt]*acts{}, stands: map[string]stand{}}
}
