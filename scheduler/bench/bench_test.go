package bench

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// meter measures this process; RSS is what the Go heap has from the system.
func meter() Meter {
	start := time.Now()
	return Meter{
		Clock: func() time.Duration { return time.Since(start) },
		CPU: func() time.Duration {
			var u syscall.Rusage
			if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
				return 0
			}
			return time.Duration(u.Utime.Nano() + u.Stime.Nano())
		},
		Allocs: func() uint64 { var m runtime.MemStats; runtime.ReadMemStats(&m); return m.Mallocs },
		RSS:    func() uint64 { var m runtime.MemStats; runtime.ReadMemStats(&m); return m.Sys },
	}
}

func TestRunCountsWhatHappened(t *testing.T) {
	r, err := Run(Config{Nodes: 20, Tasks: 500, Placements: 3000, MaxActions: 100}, meter())
	if err != nil {
		t.Fatal(err)
	}
	if r.Placements < 3000 || r.Cycles == 0 || r.Load < 0.9 || r.Packing < 0.97 || r.IdleAllocs >= 1 || r.WaitingTasks == 0 {
		t.Errorf("%+v", r)
	}
	again, err := Run(Config{Nodes: 20, Tasks: 500, Placements: 3000, MaxActions: 100}, meter())
	if err != nil {
		t.Fatal(err)
	}
	if again.Placements != r.Placements || again.Load != r.Load || again.Packing != r.Packing || again.Cycles != r.Cycles {
		t.Errorf("the same seed gave %+v and %+v", r, again)
	}
}

func TestBadCasesAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"negative nodes":   {Nodes: -1},
		"unknown features": {Features: "some"},
		"unknown policy":   {Policy: "fiffo"},
		"too much load":    {Load: 1.5},
	} {
		if _, err := Run(c, meter()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func benchmarkPlain(b *testing.B, c Config) {
	for range b.N {
		r, err := Run(c, meter())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.PlacementsPerS, "placements/s")
		b.ReportMetric(r.CycleP50MS, "p50-ms")
		b.ReportMetric(r.CycleP99MS, "p99-ms")
		b.ReportMetric(r.PlacementsPerCPUS, "placements/cpu-s")
		b.ReportMetric(r.CycleCPUP99MS, "p99-cpu-ms")
		b.ReportMetric(r.AllocsPerPlacement, "allocs/placement")
		b.ReportMetric(r.Packing, "packing")
		b.ReportMetric(r.Load, "load")
		b.ReportMetric(r.IdleCycleUS, "idle-us")
		b.ReportMetric(float64(r.RSSBytes)/(1<<20), "MiB")
	}
}

// The bars: 200,000 placements/s, packing 0.97, an idle cycle under 10 us.
func BenchmarkPlain1000(b *testing.B)  { benchmarkPlain(b, Config{Nodes: 1000}) }
func BenchmarkPlain10000(b *testing.B) { benchmarkPlain(b, Config{Nodes: 10_000}) }

// With work waiting the cluster is as full as it gets.
func BenchmarkPlainBacklog1000(b *testing.B) { benchmarkPlain(b, Config{Nodes: 1000, Tasks: 20_000}) }
func BenchmarkPlainBacklog10000(b *testing.B) {
	benchmarkPlain(b, Config{Nodes: 10_000, Tasks: 100_000})
}

// A million waiting map tasks with three replicas each: under 1 GiB.
func BenchmarkMillionWaiting(b *testing.B) {
	for range b.N {
		c := Config{Nodes: 10_000, Tasks: 1_000_000, Features: FeaturesAll, Policy: "fifo", Projects: 1, Placements: 50_000}
		runtime.GC()
		r, err := Run(c, meter())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.PlacementsPerS, "placements/s")
		b.ReportMetric(r.CycleP50MS, "p50-ms")
		b.ReportMetric(r.CycleP99MS, "p99-ms")
		b.ReportMetric(r.PlacementsPerCPUS, "placements/cpu-s")
		b.ReportMetric(r.CycleCPUP99MS, "p99-cpu-ms")
		b.ReportMetric(r.IdleCycleUS, "idle-us")
		b.ReportMetric(float64(r.RSSBytes)/(1<<20), "MiB")
	}
}

func benchmarkAll(b *testing.B, nodes int) {
	for range b.N {
		few, _ := strconv.Atoi(os.Getenv("DROVER_BENCH_PLACEMENTS")) // for a short look
		r, err := Run(Config{Nodes: nodes, Features: FeaturesAll, Placements: few}, meter())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.PlacementsPerS, "placements/s")
		b.ReportMetric(r.CycleP99MS, "p99-ms")
		b.ReportMetric(r.PlacementsPerCPUS, "placements/cpu-s")
		b.ReportMetric(r.CycleCPUP99MS, "p99-cpu-ms")
		b.ReportMetric(r.AllocsPerPlacement, "allocs/placement")
		b.ReportMetric(r.NodeLocal, "node-local")
		b.ReportMetric(r.ShareErrorTasks, "share-error")
		b.ReportMetric(r.MatchingGap, "matching-gap")
		b.ReportMetric(float64(r.Suspensions), "suspensions")
		b.ReportMetric(float64(r.ReservedPlacements), "reserved")
		b.ReportMetric(float64(r.DeadlinePlacements), "deadline")
		b.ReportMetric(float64(r.UnexplainedStages), "unexplained")
		b.ReportMetric(r.IdleCycleUS, "idle-us")
		b.ReportMetric(float64(r.RSSBytes)/(1<<20), "MiB")
	}
}

// The bars: 50,000 placements/s, p99 50 ms, node-local 0.9, share error 1 task.
func BenchmarkAll1000(b *testing.B)  { benchmarkAll(b, 1000) }
func BenchmarkAll10000(b *testing.B) { benchmarkAll(b, 10_000) }
