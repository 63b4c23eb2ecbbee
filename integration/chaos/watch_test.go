package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// watchScript writes down, about three times a second, which attempts have processes that are not frozen: the time since
// the machine booted before and after the look, the attempt, its cpu.max and memory.max. It starts no process, which an
// emulated machine would feel. That time goes on while the machine stands still, and no step of the clock changes it.
const watchScript = `exec 9<>/run/chaos.never
cd /sys/fs/cgroup/drover/tasks
while :; do
  for a in *.*.*.*.*; do
    read -r from _ </proc/uptime
    { mapfile -t events <"$a/container/cgroup.events" && read -r pid <"$a/container/cgroup.procs" && read -r comm <"/proc/$pid/comm" && read -r cpu <"$a/cpu.max" && read -r mem <"$a/memory.max"; } 2>/dev/null || continue
    read -r to _ </proc/uptime
    case $comm in runc*) continue;; esac # the engine, before it becomes the program
    case "${events[*]}" in *"populated 1"*"frozen 0"*) echo "$from $to $a $cpu $mem" >>/run/chaos.looks;; esac
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
	machine  string
	attempt  attempt
	cpu, mem string
	from, to time.Duration // on the host, since the run began: the look was within
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
		f := strings.Fields(s.Text())
		if len(f) != 6 {
			return all, now, fmt.Errorf("%s: watch: %q", n.Name, s.Text())
		}
		from, err1 := seconds(f[0])
		to, err2 := seconds(f[1])
		a, err3 := parseAttempt(f[2])
		if err := errors.Join(err1, err2, err3); err != nil {
			return all, now, fmt.Errorf("%s: watch: %q: %w", n.Name, s.Text(), err)
		}
		all = append(all, look{machine: n.Name, attempt: a, cpu: f[3] + " " + f[4], mem: f[5], from: from + span.least, to: to + span.most + 10*time.Millisecond})
	}
	return all, now, nil
}

func seconds(s string) (time.Duration, error) {
	v, err := strconv.ParseFloat(s, 64)
	return time.Duration(v * float64(time.Second)), err
}

// wideLimit is how long a program may have another cpu.max than its task's: the limit is lifted around a checkpoint,
// a step of at most a minute, which may be tried again.
const wideLimit = 2 * time.Minute

// longestGap is the time between two looks at an attempt that acts all the time. After a longer one it was frozen, or
// checkpointed, as which it was wide before, and is wide again while it is restored.
const longestGap = 5 * time.Second

// wideTime is a time in which all looks at an attempt found another cpu.max than its task's.
type wideTime struct{ since, last time.Duration }

// watch has what all machines' watches said.
type watch struct {
	mu     sync.Mutex
	clocks map[string]*clock
	looks  int
	wide   map[attempt]wideTime        // of those that have another cpu.max than their task's
	seen   map[string]map[attempt]look // of each exclusive task: of each attempt, from its first look to its last
}

// add adds looks. It returns what is wrong with them: limits that are missing.
func (w *watch) add(looks []look) error {
	var all []error
	for _, l := range looks {
		w.looks++
		wide, ok := w.wide[l.attempt]
		if !ok || l.from-wide.last > longestGap {
			wide.since = l.to
		}
		wide.last = l.to
		if l.cpu == cpuMax || l.cpu == exclusiveCPUMax {
			delete(w.wide, l.attempt)
		} else {
			w.wide[l.attempt] = wide
		}
		if l.mem == "max" || l.cpu != cpuMax && l.cpu != exclusiveCPUMax && l.from-wide.since > wideLimit {
			all = append(all, fmt.Errorf("%s: %v has cpu.max %s, memory.max %s", l.machine, l.attempt, l.cpu, l.mem))
		}
		if l.cpu != exclusiveCPUMax {
			continue
		}
		of := w.seen[l.attempt.task]
		if of == nil {
			of = map[attempt]look{}
			w.seen[l.attempt.task] = of
		}
		s, ok := of[l.attempt]
		if !ok {
			s = l
		}
		// The earliest end of a look and the latest beginning of one: the attempt acted at or before the one, and at or after the other.
		s.to, s.from = min(s.to, l.to), max(s.from, l.from)
		of[l.attempt] = s
	}
	return errors.Join(all...)
}

// actedTwice says which attempts of exclusive tasks acted after a later one had. It errs only in favour of the cluster:
// by what cannot be known of the order of two looks.
func (w *watch) actedTwice() error {
	var all []error
	for task, of := range w.seen {
		for a, x := range of {
			for b, y := range of {
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

// exclusiveAttempts returns how many attempts of exclusive tasks were seen to act.
func (w *watch) exclusiveAttempts() (n int) {
	for _, of := range w.seen {
		n += len(of)
	}
	return n
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
	for _, l := range looks {
		if l.cpu == exclusiveCPUMax {
			h.run.Exclusive++
		}
	}
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
	h.run.Limits, h.run.Attempts = h.watch.looks, h.watch.exclusiveAttempts()
}

func newWatch() *watch {
	return &watch{clocks: map[string]*clock{}, wide: map[attempt]wideTime{}, seen: map[string]map[attempt]look{}}
}
