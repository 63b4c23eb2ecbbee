package reproduce

import (
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

func TestDerivedClaimsNameClaims(t *testing.T) {
	claims, err := LoadClaims()
	if err != nil {
		t.Fatal(err)
	}
	known := func(id string) bool { return slices.ContainsFunc(claims, func(c Claim) bool { return c.ID == id }) }
	for id, from := range derivedClaims {
		if !known(id) || !known(from) {
			t.Errorf("%s is derived from %s: one of them is no claim", id, from)
		}
		if derivedClaims[from] != "" {
			t.Errorf("%s is derived from %s, which is derived itself", id, from)
		}
		if strings.Split(id, "/")[1] != strings.Split(from, "/")[1] {
			t.Errorf("%s is derived from %s of another experiment", id, from)
		}
	}
	var vs []Verdict
	for _, c := range claims {
		vs = append(vs, Verdict{Claim: c})
	}
	if n := len(factVerdicts(vs)); n != len(claims)-len(derivedClaims) {
		t.Errorf("%d facts of %d claims", n, len(claims))
	}
}

// TestEverySchedulerGetsTheSameContainers: the memory that a task occupies does not depend on who
// schedules it. YARN's step was charged to the baselines alone.
func TestEverySchedulerGetsTheSameContainers(t *testing.T) {
	truth := scheduler.Resources{700, 1200 << 20, 20 << 20}
	in := []engine.Job{{Stages: []engine.Stage{{Demand: truth}}}}
	all := inContainers(in, 1<<30)
	blind := memoryOnly(all)
	if got, want := all[0].Stages[0].Demand, (scheduler.Resources{700, 2 << 30, 20 << 20}); got != want {
		t.Errorf("demand %v, want %v", got, want)
	}
	if a, b := all[0].Stages[0].Demand[scheduler.Memory], blind[0].Stages[0].Demand[scheduler.Memory]; a != b {
		t.Errorf("memory %d for one scheduler and %d for another", a, b)
	}
	if g := blind[0].Stages[0]; g.Demand[scheduler.CPU] != 0 || g.Demand[scheduler.IO] != 0 || g.ActualDemand != truth {
		t.Errorf("what the baselines see: %+v", g)
	}
	if in[0].Stages[0].Demand != truth || all[0].Stages[0].ActualDemand != truth {
		t.Error("the tasks changed")
	}
}

// TestGroupMeansAreRatiosOfMeans: the papers print each scheduler's mean over a group.
func TestGroupMeansAreRatiosOfMeans(t *testing.T) {
	g := &mixGroup{cells: cells([]int{1, 2}, 0.5), pairs: map[mixCell]mixPair{}}
	for _, c := range g.cells {
		us, base := &mixResult{}, &mixResult{}
		us.Throughput, base.Throughput = 10*float64(c.jobs), 5
		us.Makespan, base.Makespan = 2, 4*float64(c.jobs)
		g.pairs[c] = mixPair{us, base}
	}
	if got := g.ratio(func(m *mixResult) float64 { return m.Throughput }); got != 3 {
		t.Errorf("throughput %v, want (10+20)/(5+5)", got)
	}
	if got := g.completionRatio(); got != (0.5+0.25)/2 {
		t.Errorf("completion %v, want the mean of 1/2 and 1/4", got)
	}
}
