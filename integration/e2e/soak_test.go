package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// skipUnlessSoak skips a test of several minutes but in the long variants.
func skipUnlessSoak(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("DROVER_SOAK") == "" {
		t.Skip("not proved here: ", what, "; it takes some minutes, set DROVER_SOAK=1")
	}
}

// TestTenantsShareByWeight: two tenants of weights 1 and 3 keep six places busy over many waves of short tasks, on all
// machines. Their shares are 1.5 and 4.5 places, so one of them has 1 to 2 places at any time, and the other 4 to 5.
func TestTenantsShareByWeight(t *testing.T) {
	skipUnlessSoak(t, "that tenants share machines by their weights over many waves of tasks")
	s := newFixture(t, 15*time.Minute)
	s.mustRun("tenant", "apply", s.writeJob("tenants", `tenant "e2e" {
  uid = 2001
  hdfs_user = "root"
}
tenant "one" {
  uid = 2002
  weight = 1
}
tenant "three" {
  uid = 2003
  weight = 3
}
`))
	const tasks, first, last = 72, 18, 63 // of "three": counted from the 18th that ends to the 63rd
	for _, tenant := range []string{"one", "three"} {
		s.mustRun("job", "run", "-detach", s.writeJob(tenant, fmt.Sprintf(`job %q {
  tenant = %q
  image = "oci-archive:%s"
  stage "run" { command = ["sleep", "3"]  tasks = %d  disk = "4MiB"
    resources { cpu = "400m"  memory = "16MiB"  io = "1MiB/s" } }
}
`, tenant, tenant, s.imagePath("busybox"), tasks)))
	}
	ended := func(job string) (n int) {
		for _, x := range s.tasks(job).Tasks {
			if x.State == "done" {
				n++
			}
		}
		return n
	}
	counts := func(least int) (one, three int) {
		s.waitUntil(8*time.Minute, fmt.Sprintf("%d tasks of three to end", least), func() error {
			if one, three = ended("one"), ended("three"); three < least {
				return fmt.Errorf("%d of one and %d of three have ended", one, three)
			}
			return nil
		})
		t.Logf("%d of one and %d of three have ended", one, three)
		return one, three
	}
	one0, three0 := counts(first)
	one1, three1 := counts(last)
	got, of := one1-one0, three1-three0
	// A sample may split a wave: up to two places of each tenant more or less at either end.
	if least, most := of/5-2, of/2+2; got < least || got > most {
		t.Errorf("%d tasks of weight 1 ended while %d of weight 3 did, want %d to %d", got, of, least, most)
	}
	s.mustRun("job", "stop", "one")
	for _, job := range []string{"one", "three"} {
		s.waitJob(job)
	}
	s.awaitClean(3 * time.Minute)
}

// TestACertificateThatEnds: the certificate of a node ends while a task runs there. The open connection stays, and the
// task runs on. A coordinator that is started again refuses the node, whose log says why, and the task starts elsewhere.
// With another certificate, and no restart of its daemon, the node is back.
func TestACertificateThatEnds(t *testing.T) {
	skipUnlessSoak(t, "that a node whose certificate ends is refused, says why, and comes back with another one")
	s := newFixture(t, 15*time.Minute)
	s.Cleanup(func() { // also if the test fails; it is refused if the test has passed
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = s.cluster.Drover(ctx, "job", "stop", "ticking")
	})
	s.mustRun("job", "run", "-detach", s.shellJob("ticking", "", "i=0; while [ $i -lt 4000 ]; do echo $i; i=$((i+1)); sleep 0.5; done"))
	node := s.awaitRunning("ticking", 0, 1)[0].Node
	k := int(node[1] - '0')
	const life = 90 * time.Second
	until := time.Now().Add(life)
	if err := s.cluster.RenewNode(s.ctx, k, life); err != nil {
		t.Fatal(err)
	}
	// Another daemon connects with the new certificate; one that goes on keeps its connection.
	if err := s.cluster.KillNode(s.ctx, k); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.StartNode(s.ctx, k); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Fatal(err)
	}
	s.waitUntil(2*life, "the end of the certificate", func() error {
		if left := time.Until(until.Add(5 * time.Second)); left > 0 {
			return fmt.Errorf("it is good for another %v", left)
		}
		return nil
	})
	lost := s.nodesLost()
	// The coordinator has to connect to the node for a log, and says why it does not.
	if r := s.runDrover("task", "logs", "ticking", "run/0"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "expired") {
		t.Errorf("the log of a task on a node whose certificate has expired: code %d\n%s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	if a := s.awaitRunning("ticking", 0, 1)[0]; a.Node != node || a.Key.Attempt != 1 {
		t.Errorf("behind the expired certificate the task runs on %s as %s", a.Node, a.id())
	}
	if n := s.nodesLost(); n != lost {
		t.Errorf("%d nodes were lost when the certificate ended", n-lost)
	}
	if err := s.cluster.RestartCoordinator(s.ctx); err != nil {
		t.Fatal(err)
	}
	s.waitUntil(3*time.Minute, "another attempt on another node", func() error {
		for _, x := range s.tasks("ticking").Tasks {
			for _, a := range x.Attempts {
				if a.Node != node && a.Seen.Phase == "PHASE_RUNNING" {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", s.tasks("ticking"))
	})
	if log := s.cluster.NodeLog(s.ctx, k); !strings.Contains(log, "expired") {
		t.Errorf("the log of %s does not name the expired certificate:\n%s", node, lastLines(log, 15))
	}
	t.Logf("the coordinator's log:\n%s", lastLines(s.cluster.CoordinatorLog(), 8))
	if err := s.cluster.RenewNode(s.ctx, k, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Fatal(err)
	}
	s.mustRun("job", "stop", "ticking")
	s.waitJob("ticking")
	s.awaitClean(3 * time.Minute)
}

// TestDrainedNodeIsRebootedAndReplaced: by the commands of docs/how-to/operating.md, a node is drained, rebooted, and
// taken back; then another machine, whose data folder is empty, takes its name. A task that was there loses nothing.
func TestDrainedNodeIsRebootedAndReplaced(t *testing.T) {
	skipUnlessSoak(t, "that a drained node is rebooted, and replaced by another machine, as the guide says")
	s := newFixture(t, 20*time.Minute)
	s.Cleanup(s.endDrains)
	s.mustRun("node", "drain", "n1")
	s.mustRun("node", "drain", "n3")
	s.mustRun("job", "run", "-detach", s.shellJob("counting", "", countScript))
	s.awaitRunning("counting", 0, 1)
	s.checkCounts("counting", "n2", 1)
	s.undrain("n3")

	s.mustRun("node", "drain", "-deadline", "2s", "-wait", "n2")
	s.checkCounts("counting", "n3", 2)
	if err := <-s.cluster.ResetNode(s.ctx, 2); err != nil {
		t.Fatal(err)
	}
	if err := s.cluster.StartNode(s.ctx, 2); err != nil {
		t.Fatal(err)
	}
	s.awaitNodeState("n2", "drained")
	s.undrain("n2")
	s.awaitNodeState("n2", "up")
	s.mustRun("node", "drain", "n3") // so that n2 alone takes work
	s.mustRun("job", "run", s.shellJob("after-reboot", "", "true"))
	if a := s.taskStatus("after-reboot", "run/0"); a.Node != "n2" {
		t.Errorf("the task after the reboot ran on %s", a.Node)
	}
	s.undrain("n3")

	s.mustRun("node", "drain", "-deadline", "2s", "-wait", "n2")
	if err := s.cluster.KillNode(s.ctx, 2); err != nil {
		t.Fatal(err)
	}
	if out, err := s.testbed.Nodes[1].Sh(s.ctx, "/data/bin/drover node clean -data /data/drover && rm -rf /data/drover"); err != nil {
		t.Fatal(out, err)
	}
	returned := s.countEvents("node.returned")
	if err := s.cluster.StartNode(s.ctx, 2); err != nil { // at once: it has to wait for the lease of the former one
		t.Fatal(err)
	}
	s.waitUntil(6*time.Minute, "the new machine to take the name", func() error {
		if s.countEvents("node.returned") == returned {
			return errors.New("it has not yet")
		}
		return nil
	})
	if log := s.cluster.NodeLog(s.ctx, 2); !strings.Contains(log, "node n2 is up with another data folder") {
		t.Errorf("the log of the new machine does not say that it waited:\n%s", lastLines(log, 15))
	}
	s.awaitNodeState("n2", "drained")
	s.undrain("n2")
	s.undrain("n1")
	if err := s.cluster.AwaitNodes(s.ctx, len(s.testbed.Nodes)); err != nil {
		t.Fatal(err)
	}
	s.checkCounts("counting", "n3", 2)
	s.mustRun("job", "stop", "counting")
	s.waitJob("counting")
	s.awaitClean(3 * time.Minute)
}

// awaitNodeState waits until a node whose daemon has just been started is in a state. It may probe its levels first.
func (s *fixture) awaitNodeState(node, want string) {
	s.Helper()
	s.waitUntil(6*time.Minute, node+" to be "+want, func() error {
		var st struct{ State string }
		if err := s.cluster.JSON(s.ctx, &st, "node", "status", "-json", node); err != nil {
			return err
		}
		if st.State != want {
			return fmt.Errorf("it is %s", st.State)
		}
		return nil
	})
}
