package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// countScript counts in its memory and in a file of its folder, and prints both.
const countScript = `n=0; echo 0 >count; while :; do n=$((n+1)); echo $(($(cat count)+1)) >count; echo $n $(cat count); sleep 0.5; done`

// By the commands of docs/how-to/operating.md: at the deadline of a drain what still runs goes on elsewhere and loses
// nothing, before it nothing moves, and what ends by itself ends there. Around a maintenance window a task that would not
// end before it waits, a short one does not, and what runs when it begins goes on after it.
func TestDrainsAndMaintenance(t *testing.T) {
	s := newFixture(t, 10*time.Minute)
	s.Cleanup(s.endDrains)
	s.mustRun("node", "drain", "n1")
	s.mustRun("node", "drain", "n3")
	s.mustRun("job", "run", "-detach", s.shellJob("counting", "", countScript))
	s.mustRun("job", "run", "-detach", s.shellJob("ending", "", "while [ ! -e end ]; do sleep 0.2; done"))
	for _, job := range []string{"counting", "ending"} {
		if a := s.awaitRunning(job, 0, 1)[0]; a.Node != "n2" {
			t.Fatalf("%s runs on %s, which is drained", job, a.Node)
		}
	}
	s.checkMemory("n2", "counting", "ending")
	s.checkCounts("counting", "n2", 1)
	s.undrain("n3")

	s.mustRun("node", "drain", "-deadline", "10m", "n2")
	s.mustRun("task", "exec", "ending", "run/0", "touch", "end")
	if r := s.waitJob("ending"); r.ExitCode != 0 {
		t.Errorf("a task that ended before the deadline:\n%s%s", r.Stdout, r.Stderr)
	}
	if a := s.taskStatus("ending", "run/0"); a.Node != "n2" || a.Key.Attempt != 1 || a.Key.Run != 1 {
		t.Errorf("it ended on %s as %s", a.Node, a.id())
	}
	s.checkCounts("counting", "n2", 1)
	if out := s.mustRun("node", "drain", "-deadline", "2s", "-wait", "n2").Stdout; !strings.Contains(out, "n2 is empty") {
		t.Errorf("the drain ended with %q", out)
	}
	var drained struct {
		State    string
		Deadline int64 `json:"drain_deadline_ms"`
	}
	if err := s.cluster.JSON(s.ctx, &drained, "node", "status", "-json", "n2"); err != nil || drained.State != "drained" {
		t.Errorf("%v, %+v", err, drained)
	}
	if left := s.lastEvent("task.suspending", "-job", "counting"); left.At < drained.Deadline || drained.Deadline == 0 {
		t.Errorf("it had to leave at %d, before the deadline at %d", left.At, drained.Deadline)
	}
	s.checkCounts("counting", "n3", 2)

	s.mustRun("node", "maintain", "-from", "30s", "-for", "10s", "n3") // the other nodes are drained
	s.mustRun("job", "run", "-detach", s.shellJob("long", `runtime_bound = "10m"`, "while :; do sleep 1; done"))
	s.waitUntil(20*time.Second, "the reason why the long task waits", func() error {
		if r := s.runDrover("job", "status", "long"); !strings.Contains(r.Stdout, "leave for maintenance before it would end") {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	s.mustRun("job", "run", s.shellJob("short", `runtime_bound = "5s"`, "echo done"))
	if a := s.awaitRunning("long", 0, 1)[0]; a.Node != "n3" {
		t.Errorf("the long task runs on %s, which is drained", a.Node)
	}
	s.checkCounts("counting", "n3", 2)
	order := []event{s.lastEvent("node.maintenance_ordered"), s.lastEvent("task.placed", "-job", "short"), s.lastEvent("node.maintenance_begun"),
		s.lastEvent("task.suspending", "-job", "counting"), s.lastEvent("node.maintenance_ended"), s.lastEvent("task.placed", "-job", "long")}
	for i, e := range order {
		t.Logf("%+v", e)
		if i > 0 && e.Index <= order[i-1].Index {
			t.Errorf("%s of %q came before %s of %q", e.Kind, e.Job, order[i-1].Kind, order[i-1].Job)
		}
	}
	t.Logf("events:\n%s", s.levelEvents("counting"))
	s.undrain("n2")
	s.undrain("n1")
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Error(err)
	}
	for _, job := range []string{"counting", "long"} {
		s.mustRun("job", "stop", job)
		s.waitJob(job)
	}
}

// shellJob writes the job file of one small task that runs a script, with more attributes of the job.
func (s *fixture) shellJob(name, more, script string) string {
	s.Helper()
	return s.writeJob(name, fmt.Sprintf(`job %q {
  tenant = "e2e"
  image = "oci-archive:%s"
  %s
  stage "run" { command = ["sh", "-c", %q]  disk = "16MiB"
    resources { cpu = "200m"  memory = "32MiB"  io = "1MiB/s" } }
}
`, name, s.imagePath("busybox"), more, script))
}

// undrain ends the drain of a node.
func (s *fixture) undrain(node string) {
	s.Helper()
	if out := s.mustRun("node", "drain", "-off", node).Stdout; !strings.Contains(out, node+" is schedulable again") {
		s.Errorf("the end of the drain of %s: %q", node, out)
	}
}

// endDrains leaves no node drained and no job of TestDrainsAndMaintenance for the tests that follow, also if it fails.
func (s *fixture) endDrains() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	commands := [][]string{{"node", "maintain", "-cancel", "n3"}, {"job", "stop", "counting"}, {"job", "stop", "ending"}, {"job", "stop", "long"}, {"job", "stop", "short"}}
	for k := range s.testbed.Nodes {
		commands = append(commands, []string{"node", "drain", "-off", fmt.Sprint("n", k+1)})
	}
	for _, c := range commands { // most are refused if the test has passed
		if _, err := s.cluster.Drover(ctx, c...); err != nil {
			s.Logf("drover %v: %v", c, err)
		}
	}
}

// checkMemory checks that the memory limits of the only tasks on a node, those of these jobs, add up to what the
// scheduler counts as in use there.
func (s *fixture) checkMemory(node string, jobs ...string) {
	s.Helper()
	limits := int64(0)
	for _, job := range jobs {
		limit, err := strconv.ParseInt(s.taskStatus(job, "run/0").Seen.Limits.MemoryMax, 10, 64)
		if err != nil {
			s.Errorf("memory.max of %s: %v", job, err)
		}
		limits += limit
	}
	var status struct{ Used struct{ Memory int64 } }
	if err := s.cluster.JSON(s.ctx, &status, "node", "status", "-json", node); err != nil || status.Used.Memory != limits {
		s.Errorf("%v, %d bytes are in use on %s, and the limits of its tasks are %d", err, status.Used.Memory, node, limits)
	}
}

// checkCounts waits until a counting task writes more than before, and checks that it is on a node, as a run, and that
// its counts in memory and in its folder were never set back.
func (s *fixture) checkCounts(job, node string, run int) {
	s.Helper()
	counts := func() []string {
		out := s.runDrover("task", "logs", job, "run/0").Stdout
		return strings.Split(out[:strings.LastIndex(out, "\n")+1], "\n")
	}
	var now []string
	before := len(counts())
	s.waitUntil(2*time.Minute, job+" counts on", func() error {
		if now = counts(); len(now) < before+2 {
			return fmt.Errorf("%d lines, %d before", len(now), before)
		}
		return nil
	})
	for i, line := range now[:len(now)-1] {
		if want := fmt.Sprint(i+1, " ", i+1); line != want {
			s.Fatalf("line %d of %s is %q, want %q", i+1, job, line, want)
		}
	}
	if a := s.taskStatus(job, "run/0"); a.Node != node || a.Key.Run != run || a.Key.Attempt != 1 {
		s.Errorf("%s is on %s as %s, want %s and run %d", job, a.Node, a.id(), node, run)
	}
}

// event is the part of a line of `drover events -json` that the tests need.
type event struct {
	Index uint64
	At    int64 `json:"at_ms"`
	Kind  string
	Job   string
}

// lastEvent returns the last event of a kind, of all or of a job.
func (s *fixture) lastEvent(kind string, of ...string) (last event) {
	s.Helper()
	for _, line := range strings.Split(s.mustRun(append([]string{"events", "-json"}, of...)...).Stdout, "\n") {
		var e event
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.Fatalf("%q: %v", line, err)
		}
		if e.Kind == kind {
			last = e
		}
	}
	if last.Kind == "" {
		s.Fatalf("no event %s %v", kind, of)
	}
	return last
}
