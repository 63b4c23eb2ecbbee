package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/preempt"
	"github.com/drover-run/drover/integration/testbed"
)

// holdJob computes with a given amount of memory.
const holdJob = `job "hold" {
  tenant = "analytics"
  image  = "oci-archive:%s"
  stage "hold" {
    command = ["awk", "BEGIN { s = \"0123456789abcdef\"; while (length(s) < 1048576) s = s s; for (i = 0; i < %d; i++) a[i] = s i; for (;;) n++ }"]
    disk    = "16MiB"
    resources { cpu = "500m"  memory = "%dMiB"  io = "4MiB/s" }
  }
}
`

// bareExtra is the memory of the process of `drover bench criu` beyond its -memory. It is
// subtracted, so that both images have the same size.
const bareExtra = 11 << 20

// awaitLevels waits until every node has probed its suspend levels.
func (s *demo) awaitLevels(ctx context.Context) error {
	s.logf("waiting until every machine has probed its suspend levels")
	return s.cluster.AwaitLevels(ctx)
}

// measureSuspend runs `drover bench suspend` on a task with hold MiB of memory, and criu alone on
// the same machine for comparison, with the given number of rounds each. It writes the JSON to out.
func (s *demo) measureSuspend(ctx context.Context, hold, rounds int, levels, out string) error {
	file := filepath.Join(s.dir, "hold.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, holdJob, s.image, hold, hold+hold/8+32), 0o644); err != nil {
		return err
	}
	if err := runShown(ctx, s.cluster, "job", "run", "-detach", file); err != nil {
		return err
	}
	var task struct {
		Node string
		Seen struct{ Occupied struct{ Memory json.Number } }
	}
	err := testbed.WaitFor(ctx, 3*time.Minute, fmt.Sprintf("a task that occupies %d MiB", hold), func(ctx context.Context) error {
		if err := s.cluster.JSON(ctx, &task, "task", "status", "-json", "hold", "hold/0"); err != nil {
			return err
		}
		if occupied, err := task.Seen.Occupied.Memory.Int64(); err != nil || occupied < int64(hold)<<20 {
			return fmt.Errorf("it occupies %q", task.Seen.Occupied.Memory)
		}
		return nil
	})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.testbed.Nodes, func(n *testbed.Node) bool { return n.Name == task.Node })
	if i < 0 {
		return fmt.Errorf("the task is on %q, which is not a machine of the test bed", task.Node)
	}
	s.logf("criu, runc and ctr alone on %s, with the task suspended", task.Node)
	if err := runShown(ctx, s.cluster, "task", "suspend", "hold", "hold/0"); err != nil {
		return err
	}
	bare, err := s.testbed.Nodes[i].Sh(ctx, fmt.Sprintf("PATH=$PATH:/usr/sbin:/sbin /data/bin/drover bench criu -engines -dir /data -memory %d -rounds %d -json", int64(hold)<<20-bareExtra, rounds))
	if err != nil {
		return err
	}
	if err := runShown(ctx, s.cluster, "task", "resume", "hold", "hold/0"); err != nil {
		return err
	}
	fmt.Print(bare)
	bareFile := filepath.Join(s.dir, "criu.json")
	if err := os.WriteFile(bareFile, []byte(bare), 0o644); err != nil {
		return err
	}
	bench := []string{"bench", "suspend", "-criu", bareFile, "-levels", levels, "-deep-rounds", strconv.Itoa(rounds)}
	if out != "" {
		bench = append(bench, "-save", out)
	}
	if err := runShown(ctx, s.cluster, append(bench, "hold", "hold/0")...); err != nil {
		return err
	}
	return runShown(ctx, s.cluster, "job", "stop", "hold")
}

// parseModes parses a list of modes. All modes but Alone are repeated runs times.
func parseModes(list string, runs int) ([]preempt.Mode, error) {
	var all, again []preempt.Mode
	for _, name := range strings.Split(list, ",") {
		switch m := preempt.Mode(name); m {
		case preempt.Alone:
			all = append(all, m)
		case preempt.Suspend, preempt.Kill, preempt.None:
			again = append(again, m)
		default:
			return nil, fmt.Errorf("-modes %q: use alone, suspend, kill and none", name)
		}
	}
	for range runs {
		all = append(all, again...)
	}
	return all, nil
}

// runPreempt runs the preemption scenario in each mode.
func (s *demo) runPreempt(ctx context.Context, drover string, modes []preempt.Mode, jobs int, out string) error {
	p := &preempt.Scenario{Testbed: s.testbed, Cluster: s.cluster, Dir: s.dir, Tenant: "analytics", Maps: 9, MapSeconds: 60, Jobs: jobs, ArrivalInterval: 3 * time.Second, Deadline: 45 * time.Second, Logf: s.logf}
	if err := p.Load(ctx); err != nil {
		return err
	}
	var all []*preempt.Outcome
	var predicted []*prediction
	for i, m := range modes {
		o, err := p.Run(ctx, m, i)
		if err != nil {
			return err
		}
		all = append(all, o)
		s.logf("%s: %d of %d deadlines met; maps suspended %d times, killed %d times; CPU time preserved %s, lost %s; all done after %.1f s; result correct: %v, its sha256 %.12s; jobs ended in the order %v",
			m, o.OnTime, o.Jobs, o.Suspends, o.Kills, o.PreservedCPU, o.LostCPU, o.Makespan.Seconds(), o.ResultCorrect, o.OutputDigest, o.EndOrder)
		if m == preempt.Alone {
			continue
		}
		q, err := s.predict(ctx, drover, o, i)
		if err != nil {
			return err
		}
		predicted = append(predicted, q)
		s.logf("   the simulator with the same arrivals and run times: %d met, the order %v; %d of %d pairs differ", q.OnTime, q.EndOrder, q.Inversions, o.Jobs*(o.Jobs-1)/2)
	}
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(map[string]any{"live": all, "simulated": predicted}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}
