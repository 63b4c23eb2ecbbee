package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// stamps is a task that says twice a second, in whole seconds, that it runs.
const stamps = `i=0; while [ $i -lt 400 ]; do date +%s; i=$((i+1)); sleep 0.5; done`

// A machine that is cut off freezes the task of an exclusive stage before the
// coordinator starts it again elsewhere, and removes it when the machine is back.
func TestAnExclusiveTaskNeverRunsTwice(t *testing.T) {
	exclusiveRunsOnce(t, "exclusive",
		func(s *scene, k int) error { return s.bed.Nodes[k-1].Partition(s.ctx) },
		func(s *scene, k int) error { return s.bed.Nodes[k-1].Heal(s.ctx) })
}

// Nor does it when the daemon is killed and stays dead, and one of the two watches
// with it: the other one starts another, and freezes the task.
func TestAnExclusiveTaskOfADeadDaemonStandsStill(t *testing.T) {
	exclusiveRunsOnce(t, "orphaned",
		func(s *scene, k int) error {
			n := s.bed.Nodes[k-1]
			killed, err := n.Sh(s.ctx, "read pid < /data/drover/leash.watch0 && kill -9 $pid && echo $pid")
			if err != nil {
				return fmt.Errorf("the first watch: %w", err)
			}
			if err := s.cl.KillNode(s.ctx, k); err != nil {
				return err
			}
			s.until(time.Minute, "another first watch", func() error {
				pids, err := n.Sh(s.ctx, "for i in 0 1; do read pid < /data/drover/leash.watch$i && kill -0 $pid && echo $pid; done")
				if w := strings.Fields(pids); err != nil || len(w) != 2 || w[0] == strings.TrimSpace(killed) {
					return fmt.Errorf("watch %s was killed; now there are %q, %v", strings.TrimSpace(killed), pids, err)
				}
				s.Logf("watch %s was killed and the daemon with it; the watches are now %s", strings.TrimSpace(killed), strings.Join(strings.Fields(pids), " and "))
				return nil
			})
			return nil
		},
		func(s *scene, k int) error { return s.cl.StartNode(s.ctx, k) })
}

// exclusiveRunsOnce runs an exclusive task, does what makes the coordinator give
// its machine up, waits for the task's next attempt, and mends the machine.
func exclusiveRunsOnce(t *testing.T, job string, lose, mend func(s *scene, k int) error) {
	s := begin(t, 6*time.Minute)
	s.ok("job", "run", "-detach", s.job(job, fmt.Sprintf(`job %q {
  tenant = "e2e"
  image = "oci-archive:%s"
  stage "alone" { command = ["sh", "-c", %q]  exclusive = true  disk = "4MiB"
    resources { cpu = "200m"  memory = "32MiB"  io = "1MiB/s" } }
}
`, job, s.image("busybox"), stamps)))
	s.awaitRunning(job, 0, 1)
	s.until(time.Minute, "a first stamp", func() error {
		if r := s.drover("task", "logs", job, "alone/0"); strings.TrimSpace(r.Stdout) == "" {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	first := s.attempt(job, "alone/0")
	k := int(first.Node[1] - '0')
	n := s.bed.Nodes[k-1]
	// The log goes with the attempt once the machine is back: keep a copy. Logs of
	// jobs before may still be there; this one is written to.
	watch, err := n.Start(s.ctx, "/run/stamps.log", "sh", "-c",
		`for i in $(seq 600); do cp "$(ls -t /data/drover/attempts/*/logs/stdout.log | head -1)" /run/stamps 2>/dev/null; sleep 0.3; done`)
	if err != nil {
		t.Fatal(err)
	}
	if err := lose(s, k); err != nil {
		t.Fatal(err)
	}
	s.until(2*time.Minute, "another attempt elsewhere", func() error {
		if a := s.attempt(job, "alone/0"); a.Key.Attempt == first.Key.Attempt || a.Seen.Phase != "PHASE_RUNNING" {
			return fmt.Errorf("attempt %d on %s is %s", a.Key.Attempt, a.Node, a.Seen.Phase)
		}
		return nil
	})
	var second string
	s.until(time.Minute, "its first stamp", func() error {
		second, _, _ = strings.Cut(s.drover("task", "logs", job, "alone/0").Stdout, "\n")
		if second == "" {
			return fmt.Errorf("none")
		}
		return nil
	})
	if err := mend(s, k); err != nil {
		t.Fatal(err)
	}
	out, err := n.Sh(s.ctx, "tail -1 /run/stamps; grep -c . /run/stamps")
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Kill(s.ctx); err != nil {
		t.Error(err)
	}
	last, lines, _ := strings.Cut(strings.TrimSpace(out), "\n")
	t.Logf("on %s the last of %s stamps is %s; the next attempt's first is %s", first.Node, lines, last, second)
	var x, y int64
	if _, err := fmt.Sscan(last, &x); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(second, &y); err != nil {
		t.Fatal(err)
	}
	if x >= y {
		t.Errorf("two runs at once: the first ran on at %s, the second began at %s", last, second)
	}
	s.ok("job", "stop", job)
	s.waitJob(job)
	if err := s.cl.AwaitNodes(s.ctx, len(s.bed.Nodes)); err != nil {
		t.Error(err)
	}
	s.clean(2 * time.Minute)
}
