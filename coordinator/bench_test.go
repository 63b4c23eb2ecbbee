package coordinator

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// BenchmarkOneTaskJob is the coordinator's part of the bar "a one-task job from
// submit to done in 0.3 s": with fsync, and a node that takes no time. The end
// is what WatchJob says.
func BenchmarkOneTaskJob(b *testing.B) {
	bed := newBed(b, func(c *Config) { c.NoSync = false })
	bed.node(coordtest.Info("n1"), coordtest.Succeed)
	bed.until("the node is up", func() bool { id, _ := bed.nodes[0].Registered(); return id > 0 })
	n := 0
	for b.Loop() {
		n++
		name := fmt.Sprintf("j%d", n)
		bed.submit(groupJob(name, 1))
		s, err := bed.client.WatchJob(b.Context(), connect.NewRequest(&droverv1.GetJobRequest{Job: name}))
		if err != nil {
			b.Fatal(err)
		}
		for s.Receive() && !ended(s.Msg().Job.State) {
			continue
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTasks is how many tasks a second pass from submission to success,
// through log, scheduler and node protocol, with fsync.
func BenchmarkTasks(b *testing.B) {
	bed := newBed(b, func(c *Config) { c.NoSync = false })
	info := coordtest.Info("n1")
	info.Allocatable = &droverv1.Resources{Cpu: 500_000, Memory: 1 << 40, Io: 1 << 40}
	info.Disks = []*droverv1.Disk{{Name: "d0", Io: 1 << 40, Space: 1 << 50}}
	bed.node(info, coordtest.Succeed)
	bed.until("the node is up", func() bool { id, _ := bed.nodes[0].Registered(); return id > 0 })
	const tasks = 5000
	n := 0
	for b.Loop() {
		n++
		bed.submit(groupJob(fmt.Sprintf("j%d", n), tasks))
		bed.ends(fmt.Sprintf("j%d", n), succeeded)
	}
	b.ReportMetric(float64(tasks*n)/b.Elapsed().Seconds(), "tasks/s")
}

// BenchmarkStart is the time from Run to the first answer, on a new folder.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		bed := newBed(b, func(c *Config) { c.NoSync = false })
		start := time.Now()
		if _, err := bed.client.Status(b.Context(), connect.NewRequest(&droverv1.StatusRequest{})); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-ready")
		b.StopTimer()
		start = time.Now()
		bed.kill()
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-stop")
		b.StartTimer()
	}
}
