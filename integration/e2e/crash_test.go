package e2e

import (
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
	want := sampleCounts(text)
	kill := map[string]func(node int){
		"the node daemon": func(node int) {
			if err := s.cluster.KillNode(s.ctx, node); err != nil {
				t.Fatal(err)
			}
			if err := s.cluster.StartNode(s.ctx, node); err != nil {
				t.Fatal(err)
			}
		},
		"containerd": func(node int) {
			if err := s.restartContainerd(node); err != nil {
				t.Fatal(err)
			}
		},
		"the coordinator": func(int) {
			if err := s.cluster.KillCoordinator(); err != nil {
				t.Fatal(err)
			}
			if err := s.cluster.StartCoordinator(s.ctx); err != nil {
				t.Fatal(err)
			}
		},
	}
	for i, who := range []string{"the node daemon", "containerd", "the coordinator"} {
		t.Run(who, func(t *testing.T) {
			sub := *s
			sub.T = t
			job := []string{"crash-node", "crash-containerd", "crash-coordinator"}[i]
			lost := sub.nodesLost()
			sub.mustRun("job", "run", "-detach", sub.slowWordCount(job, "/e2e/crash.txt", 300))
			running := sub.awaitRunning(job, 0, 3)
			kill[who](int(running[0].Node[1] - '0'))
			if r := sub.waitJob(job); r.ExitCode != 0 {
				t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
			}
			if got := sortLines(sub.readParts("/e2e/" + job)); got != want {
				t.Errorf("result\n%s\nwant\n%s", got, want)
			}
			if n := sub.jobStatus(job).Stages[0].FailedAttempts; n != 0 {
				t.Errorf("%d attempts failed: tasks did not survive", n)
			}
			// A daemon that comes back after its node's lease, as on a busy machine, costs its node's attempts.
			if sub.nodesLost() == lost {
				sub.checkSurvived(job, running)
			}
		})
	}
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Error(err)
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
