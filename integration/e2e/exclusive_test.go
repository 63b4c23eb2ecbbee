package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// timestampScript prints the time in whole seconds twice a second.
const timestampScript = `i=0; while [ $i -lt 400 ]; do date +%s; i=$((i+1)); sleep 0.5; done`

// A partitioned machine freezes the task of an exclusive stage before the coordinator starts it
// elsewhere, and removes it when the machine is back.
func TestExclusiveTaskNeverRunsTwice(t *testing.T) {
	testExclusive(t, "exclusive",
		func(s *fixture, k int) error { return s.testbed.Nodes[k-1].Partition(s.ctx) },
		func(s *fixture, k int) error { return s.testbed.Nodes[k-1].Heal(s.ctx) })
}

// The same holds if the daemon is killed and stays dead together with one of its two watchdog
// processes: the other one restarts the first, and freezes the task.
func TestExclusiveTaskOfDeadDaemonIsFrozen(t *testing.T) {
	testExclusive(t, "orphaned",
		func(s *fixture, k int) error {
			n := s.testbed.Nodes[k-1]
			killed, err := n.Sh(s.ctx, "read pid < /data/drover/watchdog.0 && kill -9 $pid && echo $pid")
			if err != nil {
				return fmt.Errorf("the first watchdog: %w", err)
			}
			if err := s.cluster.KillNode(s.ctx, k); err != nil {
				return err
			}
			s.waitUntil(time.Minute, "another first watchdog", func() error {
				pids, err := n.Sh(s.ctx, "for i in 0 1; do read pid < /data/drover/watchdog.$i && kill -0 $pid && echo $pid; done")
				if w := strings.Fields(pids); err != nil || len(w) != 2 || w[0] == strings.TrimSpace(killed) {
					return fmt.Errorf("watchdog %s was killed; now there are %q, %v", strings.TrimSpace(killed), pids, err)
				}
				s.Logf("watchdog %s was killed and the daemon with it; the watchdogs are now %s", strings.TrimSpace(killed), strings.Join(strings.Fields(pids), " and "))
				return nil
			})
			return nil
		},
		func(s *fixture, k int) error { return s.cluster.StartNode(s.ctx, k) })
}

// testExclusive runs an exclusive task, lets lose make the coordinator give up its machine, waits
// for the task's next attempt, and repairs the machine with mend.
func testExclusive(t *testing.T, job string, lose, mend func(s *fixture, k int) error) {
	s := newFixture(t, 6*time.Minute)
	s.mustRun("job", "run", "-detach", s.writeJob(job, fmt.Sprintf(`job %q {
  tenant = "e2e"
  image = "oci-archive:%s"
  stage "alone" { command = ["sh", "-c", %q]  exclusive = true  disk = "4MiB"
    resources { cpu = "200m"  memory = "32MiB"  io = "1MiB/s" } }
}
`, job, s.imagePath("busybox"), timestampScript)))
	s.awaitRunning(job, 0, 1)
	s.waitUntil(time.Minute, "a first timestamp", func() error {
		if r := s.runDrover("task", "logs", job, "alone/0"); strings.TrimSpace(r.Stdout) == "" {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
	first := s.taskStatus(job, "alone/0")
	k := int(first.Node[1] - '0')
	n := s.testbed.Nodes[k-1]
	// The log is removed with the attempt once the machine is back, so copy it, and whole: the copy is
	// read meanwhile. Logs of earlier jobs may still exist; the newest one is now this task's, and will
	// not be once it is removed.
	copier, err := n.Start(s.ctx, "/run/stamps.log", "sh", "-c",
		`log=$(ls -t /data/drover/attempts/*/logs/stdout.log | head -1); for i in $(seq 600); do cp "$log" /run/stamps.new && mv /run/stamps.new /run/stamps; sleep 0.3; done`)
	if err != nil {
		t.Fatal(err)
	}
	if err := lose(s, k); err != nil {
		t.Fatal(err)
	}
	s.waitUntil(2*time.Minute, "another attempt elsewhere", func() error {
		if a := s.taskStatus(job, "alone/0"); a.Key.Attempt == first.Key.Attempt || a.Seen.Phase != "PHASE_RUNNING" {
			return fmt.Errorf("attempt %d on %s is %s", a.Key.Attempt, a.Node, a.Seen.Phase)
		}
		return nil
	})
	var second string
	s.waitUntil(time.Minute, "its first timestamp", func() error {
		second, _, _ = strings.Cut(s.runDrover("task", "logs", job, "alone/0").Stdout, "\n")
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
	if err := copier.Kill(s.ctx); err != nil {
		t.Error(err)
	}
	last, lines, _ := strings.Cut(strings.TrimSpace(out), "\n")
	t.Logf("on %s the last of %s timestamps is %s; the next attempt's first is %s", first.Node, lines, last, second)
	var x, y int64
	if _, err := fmt.Sscan(last, &x); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(second, &y); err != nil {
		t.Fatal(err)
	}
	if x >= y {
		t.Errorf("two attempts at once: the first ran until %s, the second began at %s", last, second)
	}
	s.mustRun("job", "stop", job)
	s.waitJob(job)
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Error(err)
	}
	s.awaitClean(2 * time.Minute)
}
