package coordinator

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// acceptMapJob returns facts with one job of these splits, and its number.
func acceptMapJob(t testing.TB, splits []*droverv1.FactSplit) (*facts.Facts, uint64) {
	t.Helper()
	j := mapReduceJob("wc", 1)
	jobspec.SetDefaults(j)
	spec, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	f := facts.New()
	res := f.Apply(1, &droverv1.Entry{Version: facts.EntryVersion, At: 1, Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(spec), Output: j.Output.Path, Splits: splits}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return f, res.Job
}

// The mean input of a map stage is that of its splits, in the facts that accepted the job and in those that a snapshot gave,
// and predictions do not look at the splits again: a job may have a million, and they are predicted each second.
func TestPredictionsDoNotLookAtSplits(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	p := newPredictor() // that has seen that a larger split takes longer
	for i := range int64(400) {
		p.book.Observe(&estimate.Task{Stage: estimate.Stage{ID: stageID(100+uint64(i), 0), Tenant: facts.DefaultTenant, Job: "wc", Name: "map", Kind: scheduler.KindMap, InputBytes: i << 24}, RunTime: time.Duration(1+i) * time.Second})
	}
	for _, n := range []int{0, 1, 255, 256, 257, 1000} {
		var splits []*droverv1.FactSplit
		sum := 0.0
		for range n {
			s := &droverv1.FactSplit{}
			for range random.IntN(3) {
				length := random.Int64N(1 << 30)
				if n == 1000 {
					length = random.Int64() / 3 // the sum is above what an int64 has
				}
				s.Pieces, sum = append(s.Pieces, &droverv1.SplitPiece{Uri: "a", Length: length}), sum+float64(length)
			}
			splits = append(splits, s)
		}
		mean := int64(sum / float64(max(1, n)))
		accepted, id := acceptMapJob(t, splits)
		var b bytes.Buffer
		if err := accepted.Snapshot().Encode(&b); err != nil {
			t.Fatal(err)
		}
		restored, err := facts.Restore(&b)
		if err != nil {
			t.Fatal(err)
		}
		var predicted [][]*droverv1.StageEstimate
		for name, f := range map[string]*facts.Facts{"accepted": accepted, "restored": restored} {
			s := &f.Job(id).Stages[0]
			if off := math.Abs(float64(s.MeanSplit - mean)); off > 1+1e-12*float64(mean) {
				t.Errorf("%s, %d splits: the mean is %d, want %d", name, n, s.MeanSplit, mean)
			}
			predict := func() []*droverv1.StageEstimate {
				list, _ := newEstimates(f, p, f.JobIDs())
				return list
			}
			predicted = append(predicted, predict())
			s.Splits = nil
			predicted = append(predicted, predict())
		}
		for _, again := range predicted {
			if d := cmp.Diff(predicted[0], again, protocmp.Transform()); d != "" || len(again) == 0 {
				t.Errorf("%d splits: %d predictions: %s", n, len(again), d)
			}
		}
	}
}

// BenchmarkNewEstimates predicts the run times of a job's stages again, as each second in which tasks end, under the facts'
// lock: the time does not depend on the number of splits.
func BenchmarkNewEstimates(b *testing.B) {
	for _, n := range []int{1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n, " splits"), func(b *testing.B) {
			splits := make([]*droverv1.FactSplit, n)
			for i := range splits {
				splits[i] = &droverv1.FactSplit{Pieces: []*droverv1.SplitPiece{{Uri: "hdfs:///in", Offset: int64(i) << 27, Length: 1 << 27}}}
			}
			f, _ := acceptMapJob(b, splits)
			p, ids := newPredictor(), f.JobIDs()
			for b.Loop() {
				newEstimates(f, p, ids)
			}
		})
	}
}

// Without history the estimate of every task is the job's runtime_bound, which is what schedulers and guarantees take it to
// run at most, however many stages follow each other.
func TestEstimateFromTheBoundIsThatOfSchedulers(t *testing.T) {
	j := groupJob("chain", 2)
	j.RuntimeBound = jobspec.Duration(time.Hour)
	j.Stages = append(j.Stages, j.Stages[0])
	j.Stages[1].Name, j.Stages[1].After = "then", []string{j.Stages[0].Name}
	w := schedtest.New(t).AddTenants("a")
	id := w.SubmitStages("a", []scheduler.StageSpec{{Name: "main", Kind: scheduler.KindGroup, Tasks: 2}, {Name: "then", Kind: scheduler.KindGroup, Tasks: 2, After: []int32{0}}},
		func(s *scheduler.JobSpec) { s.Bound = time.Duration(j.RuntimeBound) })
	got := newPredictor().estimateSpec(j, nil)
	if len(got) != 2 {
		t.Fatalf("%d estimates", len(got))
	}
	for i, e := range got {
		if bound := w.State.Job(id).Stages[i].Bound(); time.Duration(e.Ns) != bound || e.Source != "bound" {
			t.Errorf("stage %d: %s from %s, want the bound %s", i, time.Duration(e.Ns), e.Source, bound)
		}
	}
}
