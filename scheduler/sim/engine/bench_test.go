package engine_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// barePolicy places ready tasks in order on the first nodes with free capacity and does nothing
// else: no dry run, no reasons. Its cost is that of the engine, the State and Check.
type barePolicy struct{ actions []scheduler.Action }

func (*barePolicy) Name() string { return "bare" }

func (p *barePolicy) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	p.actions = p.actions[:0]
	full := scheduler.NoNode // nodes up to it were used by an earlier stage of this cycle
	for j, at := s.Queue().Next(0); j != nil && len(p.actions) < maxActions; j, at = s.Queue().Next(at) {
		g := j.Stages[0]
		task := g.NextPending(0)
		n := s.Cluster().NextNode(g, full+1)
		for ; n != scheduler.NoNode && task >= 0 && len(p.actions) < maxActions; n = s.Cluster().NextNode(g, n+1) {
			free := s.Node(n).Free
			for ; task >= 0 && g.Spec.Demand.Fits(free) && len(p.actions) < maxActions; task = g.NextPending(task + 1) {
				p.actions = append(p.actions, s.Attempts().PlaceAction(g, task, n, 0))
				free = free.Sub(g.Spec.Demand)
			}
			full = n
		}
		if n == scheduler.NoNode {
			break
		}
	}
	return scheduler.Decision{Base: s.Index(), At: now, Actions: p.actions}
}

// cpuTime returns the CPU time of this process over all cores.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkEvents simulates a million tasks of 10 s (fewer with slower policies) and reports events
// and placements per second of wall time and per second of CPU time, which is stable on a busy
// machine. An event is one that came from the queue and changed something: a submission or the end
// of a task. A start at the time of its placement is not an event.
func BenchmarkEvents(b *testing.B) {
	names := append([]string{"bare"}, policies.Names()...)
	for _, size := range []int{1000, 10000} {
		for _, name := range names {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) { benchmarkEvents(b, name, size) })
		}
	}
}

func benchmarkEvents(b *testing.B, name string, size int) {
	jobs, tasks := 200, int32(5000)
	switch name {
	case "bare", "fifo":
	case "conservative", "two_tier": // each cycle looks at all running and waiting tasks
		jobs = 7
	default:
		jobs = 40
	}
	if size > 1000 && jobs == 40 { // so that some tasks wait here too
		jobs = 80
	}
	var wall, cpu float64
	var happened, placed uint64
	for b.Loop() {
		var p scheduler.Policy = &barePolicy{}
		if name != "bare" {
			p = policy(b, name)
		}
		c := engine.Config{Nodes: nodes(size, 40, schedtest.R(32, 128, 1000)), Policy: p, Models: engine.Models{Spread: 0.5}}
		for i := range jobs {
			j := singleStageJob(time.Duration(i)*time.Second, tasks, schedtest.R(1, 1, 1), 10*sec)
			j.Bound = time.Minute
			c.Jobs = append(c.Jobs, j)
		}
		start, used := time.Now(), cpuTime(b)
		r := mustSimulate(b, c)
		wall += time.Since(start).Seconds()
		cpu += (cpuTime(b) - used).Seconds()
		happened, placed = happened+r.Events, placed+r.Placements
	}
	b.ReportMetric(float64(happened)/wall, "events/s")
	b.ReportMetric(float64(happened)/cpu, "events/cpu-s")
	b.ReportMetric(float64(placed)/cpu, "placements/cpu-s")
}
