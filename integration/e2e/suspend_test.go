package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// slowCount is a word count whose mappers sleep after so many lines, so that there
// is time to suspend them: with 100 they take more than a minute.
func (s *scene) slowCount(name, input string, lines int) string {
	return s.job(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  input  { path = "hdfs://%s" }
  output { path = "hdfs:///e2e/%s" }
  image = "oci-archive:%s"
  stage "map" { kind = "map"  disk = "64MiB"
    command = ["awk", "{ for (i = 1; i <= NF; i++) print $i \"\t1\"; if (NR %% %d == 0) system(\"sleep 0.1\") }"]
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
  stage "reduce" { kind = "reduce"  tasks = 1  builtin = ["sum"]  disk = "64MiB"
    resources { cpu = "300m"  memory = "48MiB"  io = "2MiB/s" } }
}
`, name, input, name, s.image("busybox"), lines))
}

// awaitLevels waits, once, until every machine has told which levels it can do:
// finding that out keeps the machines busy.
func (s *scene) awaitLevels() {
	s.Helper()
	if probed {
		return
	}
	if err := s.cl.AwaitLevels(s.ctx); err != nil {
		s.Fatal(err)
	}
	probed = true
}

// probed: awaitLevels has seen all of them.
var probed bool

// attempt is a part of `drover task status -json JOB TASK`.
type attempt struct {
	Node  string
	Key   struct{ Attempt, Run int }
	Level struct{ Level, Target string }
	Seen  struct {
		Phase string
		Level string
		Usage struct {
			CPUMS string `json:"cpu_ms"`
		}
		Limits struct {
			MemorySwapMax string   `json:"memory_swap_max"`
			CPUMax        string   `json:"cpu_max"`
			IOMax         []string `json:"io_max"`
		}
		Held struct{ Memory string }
	}
}

func (s *scene) attempt(job, task string) attempt {
	s.Helper()
	var a attempt
	if err := s.cl.JSON(s.ctx, &a, "task", "status", "-json", job, task); err != nil {
		s.Fatal(err)
	}
	return a
}

// limited makes sure that a task that runs again has its limits.
func (s *scene) limited(job, task string) {
	s.Helper()
	a := s.attempt(job, task)
	if l := a.Seen.Limits; l.CPUMax != "30000 100000" || l.MemorySwapMax != "0" || len(l.IOMax) == 0 {
		s.Errorf("%s runs under %+v", task, l)
	}
}

// still makes sure that a task uses no CPU time, once what its last step cost is
// reported.
func (s *scene) still(job, task string) {
	s.Helper()
	s.until(20*time.Second, "two seconds without CPU time used", func() error {
		before := s.attempt(job, task)
		time.Sleep(2 * time.Second) // that nothing happens has to be looked at for a while
		if now := s.attempt(job, task); now.Seen.Usage != before.Seen.Usage {
			return fmt.Errorf("%s ms, then %s ms", before.Seen.Usage.CPUMS, now.Seen.Usage.CPUMS)
		}
		return nil
	})
}

// A task goes through every level and back, and on to another machine; the
// result is that of a job that nothing happened to, and no work was lost.
func TestSuspendedTasksKeepTheirWork(t *testing.T) {
	s := begin(t, 15*time.Minute)
	text := steady(3 << 20)
	s.put("/e2e/suspend.txt", text)
	const job = "suspended"
	s.ok("job", "run", "-detach", s.slowCount(job, "/e2e/suspend.txt", 200))
	s.awaitRunning(job, 0, 3)
	for _, l := range []string{"frozen", "swapped", "checkpointed"} {
		if l == "swapped" && !s.swaps() {
			continue
		}
		r := s.ok("task", "suspend", "-level", l, "-reason", "to see", job, "map/0")
		t.Logf("%s", strings.TrimSpace(r.Stdout))
		s.still(job, "map/0")
		if list := s.ok("task", "status", job).Stdout; !strings.Contains(list, l) || !strings.Contains(list, "to see") {
			t.Errorf("the list of tasks does not say that it is %s:\n%s", l, list)
		}
		t.Logf("%s", strings.TrimSpace(s.ok("task", "resume", job, "map/0").Stdout))
		s.limited(job, "map/0")
	}
	s.ok("task", "suspend", "-level", "checkpointed", job, "map/1")
	from := s.attempt(job, "map/1")
	to := "n1"
	if from.Node == to {
		to = "n2"
	}
	t.Logf("%s", strings.TrimSpace(s.ok("task", "move", "-node", to, job, "map/1").Stdout))
	if now := s.attempt(job, "map/1"); now.Node != to || now.Key.Run != from.Key.Run+1 {
		t.Errorf("it is on %s run %d, before on %s run %d", now.Node, now.Key.Run, from.Node, from.Key.Run)
	}
	s.limited(job, "map/1")
	if r := s.waitJob(job); r.Code != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sorted(s.parts("/e2e/"+job)), countOf(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	st := s.status(job)
	if st.Stages[0].FailedAttempts != 0 || st.Preempted.Lost != "0" || st.Preempted.Suspends == "0" {
		t.Errorf("%d attempts failed, taken back %+v", st.Stages[0].FailedAttempts, st.Preempted)
	}
	t.Logf("events:\n%s", s.levelEvents(job))
	s.clean(2 * time.Minute)
}

// levelEvents are the events of a job that concern levels.
func (s *scene) levelEvents(job string) string {
	var keep []string
	for _, line := range strings.Split(s.ok("events", "-job", job).Stdout, "\n") {
		for _, k := range []string{"task.susp", "task.resum", "task.mov", "task.level", "task.restore"} {
			if strings.Contains(line, k) {
				keep = append(keep, line)
				break
			}
		}
	}
	return strings.Join(keep, "\n")
}

// swaps tells whether the machines can push memory to swap.
func (s *scene) swaps() bool {
	return strings.Contains(s.ok("node", "status", "n1").Stdout, "swapped,")
}

// Frozen tasks that hold more of their machine's memory than the share allows are
// brought to the next level by the coordinator alone, and come back from there.
func TestTooMuchFrozenMemoryIsTakenBack(t *testing.T) {
	s := begin(t, 8*time.Minute)
	const job = "frozen-share"
	restart := func(flags ...string) {
		t.Helper()
		if err := s.cl.RestartCoordinator(s.ctx, flags...); err != nil {
			t.Fatal(err)
		}
	}
	restart("-frozen-share", "0.01") // of 840 MiB or less
	defer restart()
	s.ok("job", "run", "-detach", s.job(job, fmt.Sprintf(`job %q {
  tenant = "e2e"
  image = "oci-archive:%s"
  stage "hold" { command = ["awk", "BEGIN { s = \"0123456789abcdef\"; while (length(s) < 16000000) s = s s; while (1) { n++; print n; fflush(); system(\"sleep 0.2\") } }"]
    disk = "16MiB"
    resources { cpu = "200m"  memory = "96MiB"  io = "1MiB/s" } }
}
`, job, s.image("busybox"))))
	s.awaitRunning(job, 0, 1)
	lines := func() int { return strings.Count(s.drover("task", "logs", job, "hold/0").Stdout, "\n") }
	counts := func() {
		t.Helper()
		from := lines()
		s.until(time.Minute, "counting on", func() error {
			if now := lines(); now < from+3 {
				return fmt.Errorf("%d lines, %d before", now, from)
			}
			return nil
		})
	}
	counts()
	want := "checkpointed"
	if s.swaps() {
		want = "swapped"
	}
	s.drover("task", "suspend", "-level", "frozen", job, "hold/0") // it may be deeper before this has seen it frozen
	s.until(2*time.Minute, "the next level", func() error {
		a := s.attempt(job, "hold/0")
		if a.Level.Level != "LEVEL_"+strings.ToUpper(want) || a.Level.Target != "" && a.Level.Target != "LEVEL_UNSPECIFIED" {
			return fmt.Errorf("it is at %s, on its way to %q", a.Level.Level, a.Level.Target)
		}
		return nil
	})
	if story := s.levelEvents(job); !strings.Contains(story, "of the node's memory, more than the share of 0.01") {
		t.Errorf("no event says why:\n%s", story)
	}
	s.still(job, "hold/0")
	s.ok("task", "resume", job, "hold/0")
	counts()
	t.Logf("events:\n%s", s.levelEvents(job))
	s.ok("job", "stop", job)
	s.waitJob(job)
	s.clean(2 * time.Minute)
}

// Random steps on the tasks of running jobs, and daemons that are killed in
// between: no task is lost, none runs twice, no limit is missing, and every result
// is right. DROVER_STEPS says how many steps, and DROVER_SEED repeats a run; a job
// that is done makes room for another one.
func TestRandomSuspensions(t *testing.T) {
	steps, seed := uint64(20), rand.Uint64()
	if os.Getenv("DROVER_SOAK") != "" {
		steps = 200
	}
	for name, to := range map[string]*uint64{"DROVER_STEPS": &steps, "DROVER_SEED": &seed} {
		if v := os.Getenv(name); v != "" {
			var err error
			if *to, err = strconv.ParseUint(v, 10, 64); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	s := begin(t, time.Duration(10+steps)*time.Minute)
	t.Logf("%d steps (DROVER_STEPS), seed %d (DROVER_SEED repeats it)", steps, seed)
	text := steady(3 << 20)
	s.put("/e2e/random.txt", text)
	w := &randomSteps{scene: s, r: rand.New(rand.NewPCG(seed, 0)), levels: []string{"frozen", "checkpointed"}}
	if s.swaps() {
		w.levels = append(w.levels, "swapped")
	}
	for n := 1; w.done < int(steps) && !t.Failed(); n++ {
		w.job = fmt.Sprintf("random-%d", n)
		s.ok("job", "run", "-detach", s.slowCount(w.job, "/e2e/random.txt", 100))
		s.awaitRunning(w.job, 0, 3)
		for w.done < int(steps) && !strings.HasSuffix(s.status(w.job).Job.State, "SUCCEEDED") {
			w.step()
			w.done++
			w.once()
		}
		for i := range 3 { // nothing stays suspended by hand
			s.drover("task", "resume", w.job, fmt.Sprintf("map/%d", i))
		}
		if r := s.waitJob(w.job); r.Code != 0 {
			t.Fatalf("the job failed:\n%s%s\n%s", r.Stdout, r.Stderr, s.levelEvents(w.job))
		}
		if got, want := sorted(s.parts("/e2e/"+w.job)), countOf(text); got != want {
			t.Errorf("result of %s\n%s\nwant\n%s", w.job, got, want)
		}
		st := s.status(w.job)
		if st.Stages[0].FailedAttempts != 0 || st.Preempted.Lost != "0" {
			t.Errorf("%s: %d attempts failed, taken back %+v\n%s", w.job, st.Stages[0].FailedAttempts, st.Preempted, s.levelEvents(w.job))
		}
		t.Logf("after %d steps: %s is done, taken back %+v", w.done, w.job, st.Preempted)
		s.clean(2 * time.Minute)
	}
}

// randomSteps takes steps on a job by chance.
type randomSteps struct {
	*scene
	r      *rand.Rand
	levels []string // that the machines can do
	job    string   // the present one
	done   int
}

func (w *randomSteps) step() {
	w.Helper()
	task := fmt.Sprintf("map/%d", w.r.IntN(3))
	switch k := w.r.IntN(10); {
	case k < 4:
		w.ask(task, "suspend", "-level", w.levels[w.r.IntN(len(w.levels))], w.job, task)
	case k < 7:
		w.ask(task, "resume", w.job, task)
	case k < 8:
		if a := w.attempt(w.job, task); a.Level.Level != "LEVEL_CHECKPOINTED" { // only that can move
			w.drover("task", "suspend", "-level", "checkpointed", w.job, task)
		}
		w.ask(task, "move", "-node", fmt.Sprintf("n%d", 1+w.r.IntN(3)), w.job, task)
	case k < 9:
		n, engine := 1+w.r.IntN(3), w.r.IntN(3) == 0
		if engine {
			w.killed(fmt.Sprintf("containerd of n%d", n), w.killEngine(n))
		} else {
			w.killed(fmt.Sprintf("the daemon of n%d", n), w.cl.KillNode(w.ctx, n), w.cl.StartNode(w.ctx, n))
		}
	default:
		w.killed("the coordinator", w.cl.KillCoordinator(), w.cl.StartCoordinator(w.ctx))
	}
}

func (w *randomSteps) ask(task, verb string, args ...string) {
	w.Helper()
	res := w.drover(append([]string{"task", verb}, args...)...)
	w.Logf("step %d: %s %s: %s%s", w.done, verb, strings.Join(args, " "), strings.TrimSpace(res.Stdout), strings.TrimSpace(res.Stderr))
	if res.Code == 0 && verb != "suspend" {
		w.limited(w.job, task)
	}
}

func (w *randomSteps) killed(what string, errs ...error) {
	w.Helper()
	w.Logf("step %d: killed %s", w.done, what)
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

// thawed prints the attempts whose processes the kernel lets run, each with its
// cpu.max.
const thawed = `cd /sys/fs/cgroup/drover/tasks && for a in *.*.*.*.*; do
  e=$(cat $a/c/cgroup.events 2>/dev/null) || continue
  case $e in *"populated 1"*"frozen 0"*) echo $a $(cat $a/cpu.max);; esac
done; true`

// once makes sure that the kernels of all machines together let no task run twice,
// and none without its limit: on one that was asked while the task was let go on
// another the first may have been seen before, so what looks bad is looked at
// again.
func (w *randomSteps) once() {
	w.Helper()
	w.until(time.Minute, "at most one run of each task that is not frozen, with its limits", func() error {
		seen := map[string]string{}
		for _, n := range w.bed.Nodes {
			out, err := n.Sh(w.ctx, thawed)
			if err != nil {
				return err
			}
			for _, line := range strings.Split(out, "\n") {
				id, limit, _ := strings.Cut(line, " ")
				part := strings.Split(id, ".") // job, stage, task, attempt, run
				if len(part) != 5 {
					continue
				}
				task := strings.Join(part[:3], ".")
				if other, twice := seen[task]; twice {
					return fmt.Errorf("%s runs on %s and %s", task, other, n.Name)
				}
				if seen[task] = n.Name; limit != "30000 100000" {
					return fmt.Errorf("%s runs on %s under cpu.max %q", id, n.Name, limit)
				}
			}
		}
		return nil
	})
}
