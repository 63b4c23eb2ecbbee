package e2e

import (
	"strings"
	"testing"
	"time"
)

// steady is text whose count is known, of about size bytes.
func steady(size int) string {
	const line = "alpha beta gamma alpha delta\n"
	return strings.Repeat(line, size/len(line))
}

// killEngine kills containerd on a machine and starts it again.
func (s *scene) killEngine(node int) error {
	_, err := s.bed.Nodes[node-1].Sh(s.ctx, `pkill -9 -x containerd; (setsid containerd >/run/containerd.log 2>&1 &); for i in $(seq 600); do ctr version >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1`)
	return err
}

// Killing daemons in the middle of a job changes nothing about its result:
// tasks run on, the daemons find them again.
func TestKilledDaemons(t *testing.T) {
	s := begin(t, 10*time.Minute)
	text := steady(6 << 20)
	s.put("/e2e/crash.txt", text)
	want := countOf(text)
	kill := map[string]func(){
		"the node daemon": func() {
			if err := s.cl.KillNode(s.ctx, 1); err != nil {
				t.Fatal(err)
			}
			if err := s.cl.StartNode(s.ctx, 1); err != nil {
				t.Fatal(err)
			}
		},
		"containerd": func() {
			if err := s.killEngine(2); err != nil {
				t.Fatal(err)
			}
		},
		"the coordinator": func() {
			if err := s.cl.KillCoordinator(); err != nil {
				t.Fatal(err)
			}
			if err := s.cl.StartCoordinator(s.ctx); err != nil {
				t.Fatal(err)
			}
		},
	}
	for i, who := range []string{"the node daemon", "containerd", "the coordinator"} {
		t.Run(who, func(t *testing.T) {
			sub := *s
			sub.T = t
			job := []string{"crash-node", "crash-containerd", "crash-coordinator"}[i]
			sub.ok("job", "run", "-detach", sub.wordcountFile(job, "/e2e/crash.txt"))
			sub.awaitRunning(job, 0, 3)
			kill[who]()
			if r := sub.waitJob(job); r.Code != 0 {
				t.Fatalf("the job failed:\n%s%s", r.Stdout, r.Stderr)
			}
			if got := sorted(sub.parts("/e2e/" + job)); got != want {
				t.Errorf("result\n%s\nwant\n%s", got, want)
			}
			if n := sub.status(job).Stages[0].FailedAttempts; n != 0 {
				t.Errorf("%d attempts failed: tasks did not run on", n)
			}
		})
	}
	if err := s.cl.AwaitNodes(s.ctx, len(s.bed.Nodes)); err != nil {
		t.Error(err)
	}
}
