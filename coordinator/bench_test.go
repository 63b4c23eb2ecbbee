package coordinator

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// BenchmarkOneTaskJob measures the coordinator's share of a one-task job from
// submission to its end in WatchJob, with fsync and a node that takes no time.
// The target for the whole is 0.3 s.
func BenchmarkOneTaskJob(b *testing.B) {
	cluster := newTestCluster(b, func(c *Config) { c.NoSync = false })
	cluster.addNode(coordtest.Info("n1"), coordtest.Succeed)
	cluster.waitUntil("the node is up", func() bool { id, _ := cluster.nodes[0].Registered(); return id > 0 })
	n := 0
	for b.Loop() {
		n++
		name := fmt.Sprintf("j%d", n)
		cluster.submit(groupJob(name, 1))
		s, err := cluster.client.WatchJob(b.Context(), connect.NewRequest(&droverv1.GetJobRequest{Job: name}))
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

// BenchmarkTasks measures the tasks per second from submission to success,
// through log, scheduler and node protocol, with fsync.
func BenchmarkTasks(b *testing.B) {
	cluster := newTestCluster(b, func(c *Config) { c.NoSync = false })
	info := coordtest.Info("n1")
	info.Allocatable = &droverv1.Resources{Cpu: 500_000, Memory: 1 << 40, Io: 1 << 40}
	info.Disks = []*droverv1.Disk{{Name: "d0", Io: 1 << 40, Space: 1 << 50}}
	cluster.addNode(info, coordtest.Succeed)
	cluster.waitUntil("the node is up", func() bool { id, _ := cluster.nodes[0].Registered(); return id > 0 })
	const tasks = 5000
	n := 0
	for b.Loop() {
		n++
		cluster.submit(groupJob(fmt.Sprintf("j%d", n), tasks))
		cluster.waitForEnd(fmt.Sprintf("j%d", n), succeeded)
	}
	b.ReportMetric(float64(tasks*n)/b.Elapsed().Seconds(), "tasks/s")
}

// BenchmarkStart measures the time from Run to the first response, on a new
// folder.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		cluster := newTestCluster(b, func(c *Config) { c.NoSync = false })
		start := time.Now()
		if _, err := cluster.client.Status(b.Context(), connect.NewRequest(&droverv1.StatusRequest{})); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-ready")
		b.StopTimer()
		start = time.Now()
		cluster.kill()
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-stop")
		b.StartTimer()
	}
}
