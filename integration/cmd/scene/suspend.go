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

	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/preempt"
)

// holdJob holds so many MiB of memory, and computes.
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

// bareExtra is what the process that criu alone dumps has besides the memory that
// it is told to hold: with that taken off both images are of one size.
const bareExtra = 11 << 20

// levels waits until every node has found out what it can do.
func (s *scene) levels(ctx context.Context) error {
	s.say("waiting until every machine has found out how tasks can be suspended there")
	return s.cl.AwaitLevels(ctx)
}

// measure is `drover bench suspend` on a task that holds so many MiB, on the first
// machine that gets it, beside criu alone on the same machine, rounds times each.
// The JSON goes to out.
func (s *scene) measure(ctx context.Context, hold, rounds int, levels, out string) error {
	file := filepath.Join(s.dir, "hold.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, holdJob, s.image, hold, hold+hold/8+32), 0o644); err != nil {
		return err
	}
	if err := show(ctx, s.cl, "job", "run", "-detach", file); err != nil {
		return err
	}
	var task struct {
		Node string
		Seen struct{ Held struct{ Memory string } }
	}
	err := bed.WaitFor(ctx, 3*time.Minute, fmt.Sprintf("a task that holds %d MiB", hold), func(ctx context.Context) error {
		if err := s.cl.JSON(ctx, &task, "task", "status", "-json", "hold", "hold/0"); err != nil {
			return err
		}
		if held, err := strconv.ParseInt(task.Seen.Held.Memory, 10, 64); err != nil || held < int64(hold)<<20 {
			return fmt.Errorf("it holds %q", task.Seen.Held.Memory)
		}
		return nil
	})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.bed.Nodes, func(n *bed.Node) bool { return n.Name == task.Node })
	if i < 0 {
		return fmt.Errorf("the task is on %q, which is no machine of the bed", task.Node)
	}
	s.say("criu alone on %s, the task standing still meanwhile", task.Node)
	if err := show(ctx, s.cl, "task", "suspend", "hold", "hold/0"); err != nil {
		return err
	}
	bare, err := s.bed.Nodes[i].Sh(ctx, fmt.Sprintf("PATH=$PATH:/usr/sbin:/sbin /data/bin/drover bench criu -dir /data -memory %d -rounds %d -json", int64(hold)<<20-bareExtra, rounds))
	if err != nil {
		return err
	}
	if err := show(ctx, s.cl, "task", "resume", "hold", "hold/0"); err != nil {
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
	if err := show(ctx, s.cl, append(bench, "hold", "hold/0")...); err != nil {
		return err
	}
	return show(ctx, s.cl, "job", "stop", "hold")
}

// modesOf reads a list of modes: all but Alone come runs times.
func modesOf(list string, runs int) ([]preempt.Mode, error) {
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

// takeBack plays deadline jobs on full machines, in each mode.
func (s *scene) takeBack(ctx context.Context, drover string, modes []preempt.Mode, jobs int, out string) error {
	p := &preempt.Scene{Bed: s.bed, Cluster: s.cl, Dir: s.dir, Tenant: "analytics", Maps: 9, Seconds: 60, Jobs: jobs, Gap: 3 * time.Second, Deadline: 45 * time.Second, Say: s.say}
	if err := p.Load(ctx); err != nil {
		return err
	}
	var all []*preempt.Outcome
	var predicted []*prediction
	for i, m := range modes {
		o, err := p.Play(ctx, m, i)
		if err != nil {
			return err
		}
		all = append(all, o)
		s.say("%s: %d of %d deadlines kept; maps suspended %d times, killed %d times; CPU time kept %s, lost %s; all done after %.1f s; result right: %v, its sha256 %.12s; jobs ended in the order %v",
			m, o.OnTime, o.Jobs, o.Suspends, o.Kills, o.KeptCPU, o.LostCPU, o.Makespan.Seconds(), o.Right, o.Output, o.Order)
		if m == preempt.Alone {
			continue
		}
		q, err := s.predict(ctx, drover, o, i)
		if err != nil {
			return err
		}
		predicted = append(predicted, q)
		s.say("   the simulator, of the same arrivals and run times: %d kept, the order %v; %d of %d pairs are apart", q.OnTime, q.Order, q.Apart, o.Jobs*(o.Jobs-1)/2)
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
