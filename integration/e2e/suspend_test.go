package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
)

// slowWordCount writes the job file of a word count whose mappers sleep after every so many lines,
// so that there is time to suspend them: with 100 lines they take more than a minute.
func (s *fixture) slowWordCount(name, input string, lines int) string {
	return s.writeJob(name, fmt.Sprintf(`job %q {
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
`, name, input, name, s.imagePath("busybox"), lines))
}

// awaitLevels waits once until every machine has reported its suspend levels, because probing them
// keeps the machines busy.
func (s *fixture) awaitLevels() {
	s.Helper()
	if levelsKnown {
		return
	}
	if err := s.cluster.AwaitLevels(s.ctx); err != nil {
		s.Fatal(err)
	}
	levelsKnown = true
}

// levelsKnown is whether awaitLevels has succeeded.
var levelsKnown bool

// attempt is the part of `drover task status -json JOB TASK` that the tests need.
type attempt struct {
	Node  string
	Key   struct{ Job, Stage, Task, Attempt, Run int }
	Level struct{ Level, Target string }
	Seen  struct {
		Phase  string
		Level  string
		Limits struct {
			MemoryMax     string   `json:"memory_max"`
			MemorySwapMax string   `json:"memory_swap_max"`
			CPUMax        string   `json:"cpu_max"`
			IOMax         []string `json:"io_max"`
		}
		Occupied struct{ Memory json.Number }
	}
}

func (s *fixture) taskStatus(job, task string) attempt {
	s.Helper()
	var a attempt
	if err := s.cluster.JSON(s.ctx, &a, "task", "status", "-json", job, task); err != nil {
		s.Fatal(err)
	}
	return a
}

// checkLimits checks that a resumed task has its limits.
func (s *fixture) checkLimits(job, task string) {
	s.Helper()
	a := s.taskStatus(job, task)
	if l := a.Seen.Limits; l.CPUMax != "30000 100000" || l.MemorySwapMax != "0" || len(l.IOMax) == 0 {
		s.Errorf("%s runs under %+v", task, l)
	}
}

// id returns the name of the attempt on its machine.
func (a attempt) id() string {
	return fmt.Sprintf("%d.%d.%d.%d.%d", a.Key.Job, a.Key.Stage, a.Key.Task, a.Key.Attempt, a.Key.Run)
}

// idleScript prints the CPU time that a container has used, twice. In the time between nothing may happen.
const idleScript = `cd /sys/fs/cgroup/drover/tasks/ID/container || exit 1
for i in 1 2; do
  [ $i = 1 ] || sleep 2
  grep -q 'populated 1' cgroup.events && grep usage_usec cpu.stat || exit 1
done`

// checkIdle checks that a task at a level uses no CPU time, by what its machine counts. A checkpointed one has no process.
func (s *fixture) checkIdle(job, task, level string) {
	s.Helper()
	a := s.taskStatus(job, task)
	n := s.testbed.Nodes[a.Node[1]-'1']
	if level == "checkpointed" {
		s.waitUntil(20*time.Second, "a checkpointed task without a process", func() error {
			left, err := n.Sh(s.ctx, "cd /sys/fs/cgroup/drover/tasks || exit 1; cat "+a.id()+"/container/cgroup.procs 2>/dev/null; true")
			if err == nil && left != "" {
				err = fmt.Errorf("%s has processes %v", a.id(), strings.Fields(left))
			}
			return err
		})
		return
	}
	s.waitUntil(20*time.Second, "two seconds without CPU time used", func() error {
		used, err := n.Sh(s.ctx, strings.ReplaceAll(idleScript, "ID", a.id()))
		if l := strings.Split(used, "\n"); err == nil && (len(l) != 2 || l[0] != l[1]) {
			err = fmt.Errorf("%s used CPU time: %q", a.id(), l)
		}
		return err
	})
}

// putSecret stores a secret.
func (s *fixture) putSecret(name, value string) {
	s.Helper()
	valueFile := filepath.Join(s.dir, name)
	if err := os.WriteFile(valueFile, []byte(value), 0o600); err != nil {
		s.Fatal(err)
	}
	s.mustRun("secret", "key", filepath.Join(s.cluster.Dir(), "coordinator", "secrets.key"))
	s.mustRun("secret", "put", "-tenant", "e2e", "-file", valueFile, name)
}

// withSecret gives the mappers of a job file a stored secret. They fail if what they start at their end
// does not get its value from them. The file has a checksum of it alone.
func (s *fixture) withSecret(file, name, value string) string {
	s.Helper()
	s.putSecret(name, value)
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	const end = `system(\"sleep 0.1\") }`
	mapper := end + fmt.Sprintf(` END { if (system(\"test $(printf %%s $TOKEN | sha256sum | cut -c1-64) = %x\")) exit 9 }`, sha256.Sum256([]byte(value)))
	with := strings.Replace(string(text), end, mapper, 1)
	with = strings.Replace(with, "stage \"map\" {", fmt.Sprintf("stage \"map\" {\n    secret \"TOKEN\" { secret = %q }\n   ", name), 1)
	if !strings.Contains(with, "sha256sum") || !strings.Contains(with, "secret \"TOKEN\"") {
		s.Fatalf("%s has no such mapper: the secret would not be tried", file)
	}
	return s.writeJob(name+"-job", with)
}

// A task with a secret goes through every level and back, and another moves to another machine. The
// result is correct and no work is lost; both have the secret until their end, and nothing shows it.
func TestSuspendedTasksKeepTheirWork(t *testing.T) {
	s := newFixture(t, 15*time.Minute)
	text := sampleText(3 << 20)
	s.putHDFS("/e2e/suspend.txt", text)
	const job, value = "suspended", "tellnobody-4711"
	file := s.withSecret(s.slowWordCount(job, "/e2e/suspend.txt", 200), "token", value)
	s.mustRun("job", "run", "-detach", file)
	s.awaitRunning(job, 0, 3)
	for _, l := range []string{"frozen", "swapped", "checkpointed"} {
		if l == "swapped" && !s.canSwap() {
			continue
		}
		r := s.mustRun("task", "suspend", "-level", l, "-reason", "to see", job, "map/0")
		t.Logf("%s", strings.TrimSpace(r.Stdout))
		s.checkIdle(job, "map/0", l)
		if list := s.mustRun("task", "status", job).Stdout; !strings.Contains(list, l) || !strings.Contains(list, "to see") {
			t.Errorf("the list of tasks does not show that it is %s:\n%s", l, list)
		}
		t.Logf("%s", strings.TrimSpace(s.mustRun("task", "resume", job, "map/0").Stdout))
		s.checkLimits(job, "map/0")
	}
	s.mustRun("task", "suspend", "-level", "checkpointed", job, "map/1")
	from := s.taskStatus(job, "map/1")
	s.awaitLeft(from.Node, "dump")
	to := "n1"
	if from.Node == to {
		to = "n2"
	}
	t.Logf("%s", strings.TrimSpace(s.mustRun("task", "migrate", "-node", to, job, "map/1").Stdout))
	if now := s.taskStatus(job, "map/1"); now.Node != to || now.Key.Run != from.Key.Run+1 {
		t.Errorf("it is on %s run %d, was on %s run %d", now.Node, now.Key.Run, from.Node, from.Key.Run)
	}
	s.checkLimits(job, "map/1")
	if r := s.waitJob(job); r.ExitCode != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sortLines(s.readParts("/e2e/"+job)), sampleCounts(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	st := s.jobStatus(job)
	if st.Stages[0].FailedAttempts != 0 || st.Preempted.Lost != "0" || st.Preempted.Suspends == "0" {
		t.Errorf("%d attempts failed, preempted %+v", st.Stages[0].FailedAttempts, st.Preempted)
	}
	for _, shown := range [][]string{{"job", "inspect", job}, {"job", "status", "-json", job}, {"task", "status", "-json", job, "map/1"}, {"events", "-json", "-job", job}, {"job", "logs", job}} {
		if r := s.mustRun(shown...); strings.Contains(r.Stdout+r.Stderr, value) {
			t.Errorf("%q shows the secret", shown)
		}
	}
	t.Logf("events:\n%s", s.levelEvents(job))
	s.awaitClean(2 * time.Minute)
}

// levelEvents returns the events of a job that concern suspend levels.
func (s *fixture) levelEvents(job string) string {
	var matching []string
	for _, line := range strings.Split(s.mustRun("events", "-job", job).Stdout, "\n") {
		for _, k := range []string{"task.susp", "task.resum", "task.migrat", "task.level", "task.restore"} {
			if strings.Contains(line, k) {
				matching = append(matching, line)
				break
			}
		}
	}
	return strings.Join(matching, "\n")
}

// canSwap reports whether the machines support the level swapped.
func (s *fixture) canSwap() bool {
	return strings.Contains(s.mustRun("node", "status", "n1").Stdout, "swapped,")
}

// The coordinator itself moves frozen tasks that occupy more than the allowed share of their
// machine's memory to the next level, from which they can be resumed.
func TestExcessFrozenMemoryIsReclaimed(t *testing.T) {
	s := newFixture(t, 8*time.Minute)
	const job = "frozen-share"
	restart := func(flags ...string) {
		t.Helper()
		if err := s.cluster.RestartCoordinator(s.ctx, flags...); err != nil {
			t.Fatal(err)
		}
	}
	restart("-frozen-share", "0.01") // of at most 840 MiB
	defer restart()
	s.putSecret("held", "tellnobody")
	s.mustRun("job", "run", "-detach", s.writeJob(job, fmt.Sprintf(`job %q {
  tenant = "e2e"
  image = "oci-archive:%s"
  stage "hold" {
    secret "TOKEN" { secret = "held" }
    command = ["awk", "BEGIN { s = \"0123456789abcdef\"; while (length(s) < 16000000) s = s s; while (1) { n++; print n; fflush(); system(\"sleep 0.2\") } }"]
    disk = "16MiB"
    resources { cpu = "200m"  memory = "96MiB"  io = "1MiB/s" } }
}
`, job, s.imagePath("busybox"))))
	s.awaitRunning(job, 0, 1)
	lines := func() int { return strings.Count(s.runDrover("task", "logs", job, "hold/0").Stdout, "\n") }
	counts := func() {
		t.Helper()
		from := lines()
		s.waitUntil(time.Minute, "more output", func() error {
			if now := lines(); now < from+3 {
				return fmt.Errorf("%d lines, %d before", now, from)
			}
			return nil
		})
	}
	counts()
	s.awaitLeft(s.taskStatus(job, "hold/0").Node, "container", "task", "cgroup", "folder", "secret", "bundle", "runc", "socket", "process")
	want := "checkpointed"
	if s.canSwap() {
		want = "swapped"
	}
	s.runDrover("task", "suspend", "-level", "frozen", job, "hold/0") // it may already be at the next level when this command looks for frozen
	s.waitUntil(2*time.Minute, "the next level", func() error {
		a := s.taskStatus(job, "hold/0")
		if a.Level.Level != "LEVEL_"+strings.ToUpper(want) || a.Level.Target != "" && a.Level.Target != "LEVEL_UNSPECIFIED" {
			return fmt.Errorf("it is at %s, on its way to %q", a.Level.Level, a.Level.Target)
		}
		return nil
	})
	if story := s.levelEvents(job); !strings.Contains(story, "of the node's memory, more than the share of 0.01") {
		t.Errorf("no event has the reason:\n%s", story)
	}
	s.checkIdle(job, "hold/0", want)
	s.mustRun("task", "resume", job, "hold/0")
	counts()
	t.Logf("events:\n%s", s.levelEvents(job))
	s.mustRun("job", "stop", job)
	s.waitJob(job)
	s.awaitClean(2 * time.Minute)
}

// Random steps on the tasks of running jobs, with daemons killed in between: no task is lost, none
// runs twice, no limit is missing, and every result is correct. DROVER_STEPS sets the number of
// steps and RAPID_SEED repeats a run. When a job is done, the next one starts.
func TestRandomSuspensions(t *testing.T) {
	steps, seed := uint64(20), seed.New(t)
	if os.Getenv("DROVER_SOAK") != "" {
		steps = 200
	}
	if v := os.Getenv("DROVER_STEPS"); v != "" {
		var err error
		if steps, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("DROVER_STEPS: %v", err)
		}
	}
	s := newFixture(t, time.Duration(10+steps)*time.Minute)
	t.Logf("%d steps (DROVER_STEPS)", steps)
	text := sampleText(3 << 20)
	s.putHDFS("/e2e/random.txt", text)
	w := &randomSteps{fixture: s, r: rand.New(rand.NewPCG(seed, 0)), levels: []string{"frozen", "checkpointed"}}
	if s.canSwap() {
		w.levels = append(w.levels, "swapped")
	}
	for n := 1; w.done < int(steps) && !t.Failed(); n++ {
		w.job = fmt.Sprintf("random-%d", n)
		lost := s.nodesLost()
		s.mustRun("job", "run", "-detach", s.slowWordCount(w.job, "/e2e/random.txt", 100))
		s.awaitRunning(w.job, 0, 3)
		for w.done < int(steps) && !strings.HasSuffix(s.jobStatus(w.job).Job.State, "SUCCEEDED") {
			w.step()
			w.done++
			w.checkRunsOnce()
		}
		for i := range 3 { // leave nothing suspended
			s.runDrover("task", "resume", w.job, fmt.Sprintf("map/%d", i))
		}
		if r := s.waitJob(w.job); r.ExitCode != 0 {
			t.Fatalf("the job failed:\n%s%s\n%s", r.Stdout, r.Stderr, s.levelEvents(w.job))
		}
		if got, want := sortLines(s.readParts("/e2e/"+w.job)), sampleCounts(text); got != want {
			t.Errorf("result of %s\n%s\nwant\n%s", w.job, got, want)
		}
		st := s.jobStatus(w.job)
		// A daemon that comes back after its node's lease, as on a busy machine, costs its node's attempts.
		if st.Stages[0].FailedAttempts != 0 || st.Preempted.Lost != "0" && s.nodesLost() == lost {
			t.Errorf("%s: %d attempts failed, preempted %+v\n%s", w.job, st.Stages[0].FailedAttempts, st.Preempted, s.levelEvents(w.job))
		}
		t.Logf("after %d steps: %s is done, preempted %+v", w.done, w.job, st.Preempted)
		s.awaitClean(2 * time.Minute)
	}
}

// nodesLost returns how often a node's lease has ended.
func (s *fixture) nodesLost() int {
	s.Helper()
	return s.countEvents("node.lost")
}

// countEvents returns how many of the last 10,000 events are of a kind.
func (s *fixture) countEvents(kind string) int {
	s.Helper()
	return strings.Count(s.mustRun("events", "-limit", "10000").Stdout, " "+kind+" ")
}

// randomSteps takes random steps on a job.
type randomSteps struct {
	*fixture
	r      *rand.Rand
	levels []string // levels that the machines support
	job    string   // current job
	done   int

	resumed string // task that the last step resumed; "": none

	killed   string // node whose daemon was killed last; "": none
	killedAt time.Time
}

func (w *randomSteps) step() {
	w.Helper()
	task := fmt.Sprintf("map/%d", w.r.IntN(3))
	w.resumed = ""
	switch k := w.r.IntN(10); {
	case k < 4:
		w.request(task, "suspend", "-level", w.levels[w.r.IntN(len(w.levels))], w.job, task)
	case k < 7:
		w.request(task, "resume", w.job, task)
	case k < 8:
		if a := w.taskStatus(w.job, task); a.Level.Level != "LEVEL_CHECKPOINTED" { // only a checkpointed task can move
			w.runDrover("task", "suspend", "-level", "checkpointed", w.job, task)
		}
		w.request(task, "migrate", "-node", fmt.Sprintf("n%d", 1+w.r.IntN(3)), w.job, task)
	case k < 9:
		n, engine := 1+w.r.IntN(3), w.r.IntN(3) == 0
		w.awaitDaemon()
		if engine {
			w.logKilled(fmt.Sprintf("containerd of n%d", n), w.restartContainerd(n))
		} else {
			err := w.cluster.KillNode(w.ctx, n)
			w.killed, w.killedAt = fmt.Sprint("n", n), time.Now()
			w.logKilled("the daemon of "+w.killed, err, w.cluster.StartNode(w.ctx, n))
		}
	default:
		w.logKilled("the coordinator", w.cluster.KillCoordinator(), w.cluster.StartCoordinator(w.ctx))
	}
}

// awaitDaemon waits until the daemon that was killed last reports again. On a slow machine two that are killed at
// once take longer than a lease to come back, and what is lost with their nodes is then rightly lost.
func (w *randomSteps) awaitDaemon() {
	w.Helper()
	if w.killed == "" {
		return
	}
	w.waitUntil(2*time.Minute, "a report of "+w.killed, func() error {
		var list struct {
			Nodes []struct {
				Info       struct{ Name string }
				LastReport int64 `json:"last_report_ms"`
			}
		}
		if err := w.cluster.JSON(w.ctx, &list, "node", "list", "-json"); err != nil {
			return err
		}
		for _, n := range list.Nodes {
			if n.Info.Name == w.killed && n.LastReport > w.killedAt.UnixMilli() {
				return nil
			}
		}
		return fmt.Errorf("killed at %v, nodes %+v", w.killedAt, list.Nodes)
	})
}

func (w *randomSteps) request(task, verb string, args ...string) {
	w.Helper()
	res := w.runDrover(append([]string{"task", verb}, args...)...)
	w.Logf("step %d: %s %s: %s%s", w.done, verb, strings.Join(args, " "), strings.TrimSpace(res.Stdout), strings.TrimSpace(res.Stderr))
	if res.ExitCode == 0 && verb != "suspend" {
		w.resumed = task
		w.checkLimits(w.job, task)
	}
}

func (w *randomSteps) logKilled(what string, errs ...error) {
	w.Helper()
	w.Logf("step %d: killed %s", w.done, what)
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

// thawedScript prints the attempts whose processes are not frozen, each with its cpu.max.
const thawedScript = `cd /sys/fs/cgroup/drover/tasks || exit 1
for a in *.*.*.*.*; do
  e=$(cat $a/container/cgroup.events 2>/dev/null) || continue
  case $e in *"populated 1"*"frozen 0"*) echo $a $(cat $a/cpu.max);; esac
done; true`

// checkRunsOnce checks that over all machines no task runs twice or without its limit, and that one that the
// last step resumed runs, unless it has ended. The machines are queried one after the other while tasks move, so a
// violation must persist to count.
func (w *randomSteps) checkRunsOnce() {
	w.Helper()
	w.waitUntil(time.Minute, "at most one run of each task that is not frozen, with its limits", func() error {
		seen := map[string]string{}
		for _, n := range w.testbed.Nodes {
			out, err := n.Sh(w.ctx, thawedScript)
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
		if w.resumed == "" {
			return nil
		}
		a := w.taskStatus(w.job, w.resumed)
		if task := fmt.Sprintf("%d.%d.%d", a.Key.Job, a.Key.Stage, a.Key.Task); seen[task] == "" && a.Seen.Phase == "PHASE_RUNNING" {
			return fmt.Errorf("%s was resumed and runs on no machine: only %v do", task, seen)
		}
		return nil
	})
}
