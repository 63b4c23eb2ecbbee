package e2e

import (
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

// Random steps on the tasks of a running job, and daemons that are killed in
// between: no task is lost, none runs twice, no limit is missing, and the result
// is right.
func TestRandomSuspensions(t *testing.T) {
	steps := 20
	if os.Getenv("DROVER_SOAK") != "" {
		steps = 200
	}
	s := begin(t, time.Duration(10+steps/2)*time.Minute)
	seed := rand.Uint64()
	if v := os.Getenv("DROVER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("DROVER_SEED: %v", err)
		}
	}
	t.Logf("seed %d (DROVER_SEED repeats it)", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	text := steady(3 << 20)
	s.put("/e2e/random.txt", text)
	const job = "random"
	s.ok("job", "run", "-detach", s.slowCount(job, "/e2e/random.txt", 100))
	s.awaitRunning(job, 0, 3)
	levels := []string{"frozen", "checkpointed"}
	if s.swaps() {
		levels = append(levels, "swapped")
	}
	for i := range steps {
		if strings.HasSuffix(s.status(job).Job.State, "SUCCEEDED") {
			t.Logf("the job ended before step %d", i)
			break
		}
		task := fmt.Sprintf("map/%d", r.IntN(3))
		var args []string
		switch k := r.IntN(10); {
		case k < 4:
			args = []string{"task", "suspend", "-level", levels[r.IntN(len(levels))], job, task}
		case k < 7:
			args = []string{"task", "resume", job, task}
		case k < 8:
			if a := s.attempt(job, task); a.Level.Level != "LEVEL_CHECKPOINTED" { // only that can move
				s.drover("task", "suspend", "-level", "checkpointed", job, task)
			}
			args = []string{"task", "move", "-node", fmt.Sprintf("n%d", 1+r.IntN(3)), job, task}
		case k < 9 && r.IntN(3) == 0:
			n := 1 + r.IntN(3)
			t.Logf("step %d: kill containerd of n%d", i, n)
			if err := s.killEngine(n); err != nil {
				t.Fatal(err)
			}
			continue
		case k < 9:
			n := 1 + r.IntN(3)
			t.Logf("step %d: kill the daemon of n%d", i, n)
			if err := s.cl.KillNode(s.ctx, n); err != nil {
				t.Fatal(err)
			}
			if err := s.cl.StartNode(s.ctx, n); err != nil {
				t.Fatal(err)
			}
			continue
		default:
			t.Logf("step %d: kill the coordinator", i)
			if err := s.cl.KillCoordinator(); err != nil {
				t.Fatal(err)
			}
			if err := s.cl.StartCoordinator(s.ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		res := s.drover(args...)
		t.Logf("step %d: %s: %s%s", i, strings.Join(args[1:], " "), strings.TrimSpace(res.Stdout), strings.TrimSpace(res.Stderr))
		if res.Code == 0 && args[1] != "suspend" {
			s.limited(job, task)
		}
	}
	for i := range 3 { // nothing stays suspended by hand
		s.drover("task", "resume", job, fmt.Sprintf("map/%d", i))
	}
	if r := s.waitJob(job); r.Code != 0 {
		t.Fatalf("the job failed:\n%s%s\n%s", r.Stdout, r.Stderr, s.levelEvents(job))
	}
	if got, want := sorted(s.parts("/e2e/"+job)), countOf(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	st := s.status(job)
	if st.Stages[0].FailedAttempts != 0 || st.Preempted.Lost != "0" {
		t.Errorf("%d attempts failed, taken back %+v\n%s", st.Stages[0].FailedAttempts, st.Preempted, s.levelEvents(job))
	}
	s.clean(2 * time.Minute)
}
