package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// sampleText returns about size bytes of text with known word counts.
func sampleText(size int) string {
	const line = "alpha beta gamma alpha delta\n"
	return strings.Repeat(line, size/len(line))
}

// restartContainerd kills containerd on a machine and starts it again.
func (s *fixture) restartContainerd(node int) error {
	_, err := s.testbed.Nodes[node-1].Sh(s.ctx, `pkill -9 -x containerd; (setsid containerd >/run/containerd.log 2>&1 &); for i in $(seq 600); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1`)
	return err
}

// Killing daemons during a job does not change its result: programs that run go on, and the restarted
// daemons find them.
func TestKilledDaemons(t *testing.T) {
	s := newFixture(t, 14*time.Minute)
	text := sampleText(3 << 20)
	s.putHDFS("/e2e/crash.txt", text)
	const job = "crash"
	lost := s.nodesLost()
	s.mustRun("job", "run", "-detach", s.slowWordCount(job, "/e2e/crash.txt", 150))
	running := s.awaitRunning(job, 0, 3)
	for _, c := range []struct {
		daemon string
		kill   func(node int) error // and start it again
	}{
		{"the node daemon", func(node int) error {
			return errors.Join(s.cluster.KillNode(s.ctx, node), s.cluster.StartNode(s.ctx, node))
		}},
		{"containerd", s.restartContainerd},
		{"the coordinator", func(int) error {
			return errors.Join(s.cluster.KillCoordinator(), s.cluster.StartCoordinator(s.ctx))
		}},
	} {
		if state := s.jobStatus(job).Job.State; state != "JOB_STATE_RUNNING" {
			t.Fatalf("the job is in %s before %s is killed", state, c.daemon)
		}
		if err := errors.Join(c.kill(int(running[0].Node[1]-'0')), s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes))); err != nil {
			t.Fatalf("%s was killed and started again: %v", c.daemon, err)
		}
	}
	if r := s.waitJob(job); r.ExitCode != 0 {
		t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
	}
	if got, want := sortLines(s.readParts("/e2e/"+job)), sampleCounts(text); got != want {
		t.Errorf("result\n%s\nwant\n%s", got, want)
	}
	if n := s.jobStatus(job).Stages[0].FailedAttempts; n != 0 {
		t.Errorf("%d attempts failed: tasks did not survive", n)
	}
	// A daemon that comes back after its node's lease, as on a busy machine, costs its node's attempts.
	if s.nodesLost() == lost {
		s.checkSurvived(job, running)
	}
}

// checkSurvived checks that the tasks of these attempts had no other attempt.
func (s *fixture) checkSurvived(job string, running []attempt) {
	s.Helper()
	for _, t := range s.tasks(job).Tasks {
		for _, a := range running {
			if len(t.Attempts) > 0 && a.Key.Stage == t.Attempts[0].Key.Stage && a.Key.Task == t.Task && (len(t.Attempts) != 1 || t.Attempts[0].id() != a.id()) {
				s.Errorf("%s/%d ran as %s: its attempts are %+v", t.Stage, t.Task, a.id(), t.Attempts)
			}
		}
	}
}
