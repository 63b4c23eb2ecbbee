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

// Killing daemons during a job does not change its result: tasks keep running, and the restarted
// daemons find them.
func TestKilledDaemons(t *testing.T) {
	s := newFixture(t, 10*time.Minute)
	text := sampleText(6 << 20)
	s.putHDFS("/e2e/crash.txt", text)
	want := sampleCounts(text)
	kill := map[string]func(){
		"the node daemon": func() {
			if err := s.cluster.KillNode(s.ctx, 1); err != nil {
				t.Fatal(err)
			}
			if err := s.cluster.StartNode(s.ctx, 1); err != nil {
				t.Fatal(err)
			}
		},
		"containerd": func() {
			if err := s.restartContainerd(2); err != nil {
				t.Fatal(err)
			}
		},
		"the coordinator": func() {
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
			sub.mustRun("job", "run", "-detach", sub.wordcountFile(job, "/e2e/crash.txt"))
			sub.awaitRunning(job, 0, 3)
			kill[who]()
			if r := sub.waitJob(job); r.ExitCode != 0 {
				t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
			}
			if got := sortLines(sub.readParts("/e2e/" + job)); got != want {
				t.Errorf("result\n%s\nwant\n%s", got, want)
			}
			if n := sub.jobStatus(job).Stages[0].FailedAttempts; n != 0 {
				t.Errorf("%d attempts failed: tasks did not survive", n)
			}
		})
	}
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Error(err)
	}
}
