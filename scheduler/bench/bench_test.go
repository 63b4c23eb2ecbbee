package bench

import (
	"errors"
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// testMeter measures this process; RSS is the memory that the Go heap obtained from the system.
func testMeter() Meter {
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

func TestMeasureCounts(t *testing.T) {
	r, err := measure(Config{Nodes: 20, WaitingTasks: 500, Placements: 3000, maxActions: 100}, testMeter())
	if err != nil {
		t.Fatal(err)
	}
	if r.Placements < 3000 || r.Cycles == 0 || r.Load < 0.9 || r.Packing < 0.97 || r.IdleAllocs >= 1 || r.WaitingTasks == 0 {
		t.Errorf("%+v", r)
	}
	again, err := measure(Config{Nodes: 20, WaitingTasks: 500, Placements: 3000, maxActions: 100}, testMeter())
	if err != nil {
		t.Fatal(err)
	}
	if again.Placements != r.Placements || again.Load != r.Load || again.Packing != r.Packing || again.Cycles != r.Cycles {
		t.Errorf("the same seed gave %+v and %+v", r, again)
	}
}

// Policies that honour no guarantees run with all features too: nothing is reserved for them.
func TestAllFeaturesWithoutGuarantees(t *testing.T) {
	for _, name := range []string{"fifo", "edf", "easy", "multifactor", "las", "equ"} {
		r, err := measure(Config{Nodes: 1000, Tenants: 100, WaitingTasks: 2000, Placements: 2000, Features: FeaturesAll, Policy: name}, testMeter())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.ReservationsWaiting != 0 {
			t.Errorf("%s: %d reservations", name, r.ReservationsWaiting)
		}
	}
}

func TestBadCasesAreRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"negative nodes":   {Nodes: -1},
		"unknown features": {Features: "some"},
		"unknown policy":   {Policy: "fiffo"},
		"too much load":    {targetLoad: 1.5},
	} {
		if _, err := measure(c, testMeter()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestScalingCasesVaryOneDimension(t *testing.T) {
	steps := ScalingCases(Config{Features: FeaturesAll})
	if len(steps) != 9 {
		t.Fatalf("%d cases", len(steps))
	}
	whole := steps[8]
	if whole.Nodes != 10_000 || whole.Tenants != 1000 || whole.WaitingTasks != 20_000 || whole.projects != 1000 {
		t.Errorf("the last case is %+v", whole)
	}
	for i, c := range steps {
		tenth := []int{100, 10, 1}[i%3]
		want := whole
		*[]*int{&want.Nodes, &want.Tenants, &want.WaitingTasks}[i/3] /= tenth
		want.projects = min(want.projects, want.Nodes)
		if c.Nodes != want.Nodes || c.Tenants != want.Tenants || c.WaitingTasks != want.WaitingTasks || c.projects != want.projects {
			t.Errorf("case %d is %+v", i, c)
		}
	}
}

func TestMeasureMedian(t *testing.T) {
	m := testMeter()
	times := []time.Duration{30, 10, 20} // the clock's tick in each run
	run, tick := 0, time.Duration(0)
	now := time.Duration(0)
	m.Clock = func() time.Duration { now += tick; return now }
	m.RSS = func() uint64 { run++; tick = times[run%3] * time.Microsecond; return 1 } // called once at the end of each run
	tick = times[0] * time.Microsecond
	r, err := MeasureMedian(Config{Nodes: 10, Placements: 500, maxActions: 50}, 3, m)
	if err != nil {
		t.Fatal(err)
	}
	if !(r.SlowestPerS < r.PlacementsPerS && r.PlacementsPerS < r.FastestPerS) || r.Runs != 3 {
		t.Errorf("%+v", r)
	}
	if _, err := MeasureMedian(Config{}, 0, m); err == nil {
		t.Error("0 runs are accepted")
	}
}

func benchmarkPlain(b *testing.B, c Config) {
	for range b.N {
		r, err := measure(c, testMeter())
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

// The targets: 200,000 placements/s, packing 0.97, an idle cycle under 10 us.
func BenchmarkPlain1000(b *testing.B)  { benchmarkPlain(b, Config{Nodes: 1000}) }
func BenchmarkPlain10000(b *testing.B) { benchmarkPlain(b, Config{Nodes: 10_000}) }

// With waiting tasks the cluster is as full as possible.
func BenchmarkPlainBacklog1000(b *testing.B) {
	benchmarkPlain(b, Config{Nodes: 1000, WaitingTasks: 20_000})
}
func BenchmarkPlainBacklog10000(b *testing.B) {
	benchmarkPlain(b, Config{Nodes: 10_000, WaitingTasks: 100_000})
}

// A million waiting map tasks with three replicas each and all features: under 1 GiB, at the same
// rate. First with fifo, which ignores data locations.
func BenchmarkMillionWaitingFIFO(b *testing.B) {
	benchmarkPlain(b, Config{Nodes: 10_000, WaitingTasks: 1_000_000, Features: FeaturesAll, Policy: "fifo", projects: 1, Placements: 50_000})
}

func BenchmarkMillionWaiting(b *testing.B) {
	benchmarkWith(b, Config{Nodes: 10_000, WaitingTasks: 1_000_000, Features: FeaturesAll, Placements: 50_000})
}

func benchmarkAll(b *testing.B, nodes int) {
	few, _ := strconv.Atoi(os.Getenv("DROVER_BENCH_PLACEMENTS")) // for a short run
	benchmarkWith(b, Config{Nodes: nodes, Features: FeaturesAll, Placements: few})
}

func benchmarkWith(b *testing.B, c Config) {
	for range b.N {
		r, err := measure(c, testMeter())
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

// The targets: 50,000 placements/s, p99 50 ms, node-local 0.9, share error 1 task.
func BenchmarkAll1000(b *testing.B)  { benchmarkAll(b, 1000) }
func BenchmarkAll10000(b *testing.B) { benchmarkAll(b, 10_000) }

// BenchmarkPlanning10000 lets the policy make and repair the guarantees of projects.
func BenchmarkPlanning10000(b *testing.B) {
	few, _ := strconv.Atoi(os.Getenv("DROVER_BENCH_PLACEMENTS"))
	benchmarkWith(b, Config{Nodes: 10_000, Features: FeaturesAll, Placements: few, Planning: true})
}

// The longest cycle is that of each cycle's shortest time.
func TestWorstTakesEachCyclesShortestTime(t *testing.T) {
	steps, cpu := []time.Duration{5, 9, 2, 7, 3, 8}, time.Duration(0) // ms of the cycles of two runs
	reads := 0
	meter := Meter{CPU: func() time.Duration {
		if reads++; reads%2 == 0 {
			cpu += steps[reads/2-1] * time.Millisecond
		}
		return cpu
	}}
	runs := WorstRuns{Case: WorstCases()[0], Config: WorstConfig{Nodes: 20, Cycles: 3, Policy: "fifo", Scale: 1000}}
	err := errors.Join(runs.Run(meter), runs.Run(meter))
	if r := runs.Result(); err != nil || r.Cycles != 3 || r.LongestMS != 5 || r.At != 0 || math.Abs(r.MeanMS-10.0/3) > 1e-9 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Each worst case runs, and places work of both tenants.
func TestWorstCasesRun(t *testing.T) {
	cpu := time.Duration(0)
	meter := Meter{CPU: func() time.Duration { cpu += time.Millisecond; return cpu }}
	for _, k := range WorstCases() {
		for _, policy := range []string{"3dsf", "fifo"} {
			runs := WorstRuns{Case: k, Config: WorstConfig{Nodes: 20, Cycles: 4, Policy: policy, Scale: 1000}}
			err := errors.Join(runs.Run(meter), runs.Run(meter))
			if r := runs.Result(); err != nil || r.Cycles != 4 || r.Placed < 20 || r.LongestMS != 1 {
				t.Errorf("%s, %s: %+v, %v", k.Name, policy, r, err)
			}
		}
	}
}
