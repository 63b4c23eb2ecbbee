package engine_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// scriptedPolicy places tasks that fit on the first node and executes two scripted actions on the
// first attempt.
type scriptedPolicy struct {
	firstNode
	at      [2]time.Duration
	actions [2]scheduler.Action
	next    int
}

func (p *scriptedPolicy) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	d := p.firstNode.Decide(s, now, maxActions)
	if p.next == len(p.actions) {
		return d
	}
	if due := engine.Epoch.Add(p.at[p.next]); now < due {
		d.Wake = due
		return d
	}
	a := p.actions[p.next]
	p.next++
	if a.Kind != 0 {
		a.Task, a.Attempt = scheduler.TaskID{Job: 1}, 1
		d.Actions = append(d.Actions, a)
	}
	if p.next < len(p.actions) {
		d.Wake = engine.Epoch.Add(p.at[p.next])
	}
	return d
}

func TestSuspendedTaskLosesNoWork(t *testing.T) {
	speeds := scheduler.SuspendSpeed{Freeze: sec, ThawAfterFreeze: sec, Swap: 2 * sec, SwapPerS: 1 << 30, SwapBackPerS: 1 << 30, Checkpoint: 3 * sec,
		CheckpointPerS: 1 << 29, Restore: 4 * sec, RestorePerS: 1 << 30, TransferPerS: 1 << 28}
	const suspend, resume, migrate, kill = scheduler.ActSuspend, scheduler.ActResume, scheduler.ActMigrate, scheduler.ActKill
	for name, c := range map[string]struct {
		do   [2]scheduler.Action
		want time.Duration // the end of 100 s of work that is stopped at 10 s and resumed at 30 s
		lost float64
	}{
		"frozen, thawed in 1 s":                       {[2]scheduler.Action{{Kind: suspend, Run: 1, Level: scheduler.LevelFrozen}, {Kind: resume, Run: 1}}, 121 * sec, 0},
		"swapped, 1 GiB comes back in 1 s more":       {[2]scheduler.Action{{Kind: suspend, Run: 1, Level: scheduler.LevelSwapped}, {Kind: resume, Run: 1}}, 122 * sec, 0},
		"checkpointed, restored in 5 s":               {[2]scheduler.Action{{Kind: suspend, Run: 1, Level: scheduler.LevelCheckpointed}, {Kind: resume, Run: 1}}, 125 * sec, 0},
		"checkpointed, moved in 4 s, restored in 5 s": {[2]scheduler.Action{{Kind: suspend, Run: 1, Level: scheduler.LevelCheckpointed}, {Kind: migrate, Run: 2, Node: 1, Disk: 0}}, 129 * sec, 0},
		"moved while it runs: image first, 6 s":       {[2]scheduler.Action{{}, {Kind: migrate, Run: 2, Node: 1, Disk: 0}}, 115 * sec, 0},
		"killed at 10 s and placed again at once":     {[2]scheduler.Action{{Kind: kill, Run: 1}, {}}, 110 * sec, 10},
	} {
		t.Run(name, func(t *testing.T) {
			ns := nodes(2, 2, schedtest.R(1, 2, 0))
			for i := range ns {
				ns[i].Speeds = speeds
			}
			r := mustSimulate(t, engine.Config{Nodes: ns, Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), 100*sec)},
				Policy: &scriptedPolicy{at: [2]time.Duration{10 * sec, 30 * sec}, actions: c.do}})
			if f := r.Jobs[0].Finish; f != c.want {
				t.Errorf("ends at %v, want %v", f, c.want)
			}
			if r.WorkLostCPU != c.lost || r.UsefulCPU*r.Makespan.Seconds()*2 != 100 {
				t.Errorf("lost %v CPU-s, useful %v", r.WorkLostCPU, r.UsefulCPU*r.Makespan.Seconds()*2)
			}
		})
	}
}

// An attempt that is killed while it moves is on neither node any more, when that is lost.
func TestKilledMigrationEnds(t *testing.T) {
	ns := nodes(2, 2, schedtest.R(1, 2, 0))
	for i := range ns {
		ns[i].Speeds = scheduler.SuspendSpeed{Checkpoint: 3 * sec, CheckpointPerS: 1 << 29, Restore: 4 * sec, RestorePerS: 1 << 30, TransferPerS: 1 << 28}
	}
	p := &scriptedPolicy{at: [2]time.Duration{10 * sec, 12 * sec}, actions: [2]scheduler.Action{{Kind: scheduler.ActMigrate, Run: 2, Node: 1}, {Kind: scheduler.ActKill, Run: 2}}}
	r := mustSimulate(t, engine.Config{Nodes: ns, Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), 100*sec)}, Policy: p,
		Absences: []engine.Absence{{From: 13 * sec, To: 100 * sec, Drain: 2 * sec}, {Node: 1, From: 14 * sec, To: 100 * sec, Drain: 3 * sec}}}) // nothing starts in between
	if r.Jobs[0].Finish != 200*sec || r.Migrations != 1 || r.Kills != 1 || r.NodesLost != 2 || r.WorkLostCPU != 10 {
		t.Errorf("%+v, %d migrations, %d kills, %d nodes lost, %v CPU-s lost", r.Jobs[0], r.Migrations, r.Kills, r.NodesLost, r.WorkLostCPU)
	}
}

// One attempt in ten takes twenty times as long. With speculative attempts jobs end earlier; the
// loser of each pair is killed and its work is lost.
func TestSecondAttemptsBeatStragglers(t *testing.T) {
	c := engine.Config{Nodes: nodes(10, 5, schedtest.R(4, 16, 100)), Seed: 5, Models: engine.Models{StragglerFraction: 0.1, StragglerFactor: 20, Spread: 0.1}}
	for i := range 20 {
		c.Jobs = append(c.Jobs, singleStageJob(time.Duration(i)*30*sec, 20, schedtest.R(1, 1, 0), 10*sec))
	}
	mean := func(params ...string) (time.Duration, *engine.Result) {
		c.Policy = policy(t, "fifo", params...)
		r := mustSimulate(t, c)
		sum := time.Duration(0)
		for i := range r.Jobs {
			sum += r.Jobs[i].Response()
		}
		return sum / time.Duration(len(r.Jobs)), r
	}
	without, a := mean()
	with, b := mean("speculate", "2")
	if 3*with > without || b.WorkLostCPU <= a.WorkLostCPU || b.TasksDone != a.TasksDone || b.Placements <= a.Placements {
		t.Errorf("mean response %v with speculative attempts (%v CPU-s lost, %d placements), %v without (%v, %d)", with, b.WorkLostCPU, b.Placements, without, a.WorkLostCPU, a.Placements)
	}
	if again, _ := mean("speculate", "2"); again != with {
		t.Errorf("equal seeds yield %v, then %v", with, again)
	}
}
