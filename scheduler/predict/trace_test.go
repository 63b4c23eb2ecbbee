package predict

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/publictrace"
)

// ended is a heap of jobs by their end.
type ended []endedJob

type endedJob struct {
	at, seconds float64
	task        Task
}

func (h ended) Len() int           { return len(h) }
func (h ended) Less(i, k int) bool { return h[i].at < h[k].at }
func (h ended) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *ended) Push(x any)        { *h = append(*h, x.(endedJob)) }
func (h *ended) Pop() any          { x := (*h)[len(*h)-1]; *h = (*h)[:len(*h)-1]; return x }

// traceErrors are log(run time/estimate) of one way to predict.
type traceErrors []float64

func meanSquare(logs []float64) float64 {
	var s float64
	for _, e := range logs {
		s += e * e / float64(len(logs))
	}
	return s
}

func (e traceErrors) String() string {
	sorted := slices.Clone(e)
	for i := range sorted {
		sorted[i] = math.Abs(sorted[i])
	}
	slices.Sort(sorted)
	return fmt.Sprintf("%d jobs: root mean square of the log error %.3f, median factor %.2f", len(e), math.Sqrt(meanSquare(e)), math.Exp(sorted[len(sorted)/2]))
}

// Real run times: KTH-SP2 in the order of submission, each job predicted from those that had ended
// by then, by the network, the ridge regression, and the means by name and by user. A job's name is
// its user, processors and requested time, as the log has no names; the requested time stands for
// the input size. What
// follows from the table is in docs/explanation/decisions/run-time-prediction.md.
func TestSourcesOnKTHSP2(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: which way to predict is best on KTH-SP2; it trains for some seconds, run it without -short")
	}
	p, ws := New(DefaultConfig(1)), newBuffers()
	var running ended
	var network, ridge, fallback, tenant, used traceErrors
	sources := map[Source]int{}
	for _, f := range publictrace.Rows(t, publictrace.KTHSP2) {
		num := func(i int) float64 {
			x, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		submit, seconds := num(1), num(3)
		for len(running) > 0 && running[0].at <= submit {
			j := heap.Pop(&running).(endedJob)
			p.Observe(j.task, j.seconds)
			p.Train(1 << 16)
		}
		x := Task{Stage: strings.Join([]string{f[11], f[7], f[8]}, "/"), Tenant: f[11]}
		x.Features[CPU] = 1000 * num(7)
		x.Features[InputBytes] = num(8)
		x.Features[Slowdown] = 1
		heap.Push(&running, endedJob{submit + seconds, seconds, x})
		named := x
		out := p.Predict(&named)
		m := p.model
		if m == nil {
			continue // too few jobs have ended
		}
		off := func(estimate float64) float64 { return math.Log(seconds / estimate) }
		byName, _ := p.fallbackEstimate(&named)
		alone := x
		alone.Stage = ""
		byTenant, _ := p.fallbackEstimate(&alone)
		network, ridge = append(network, off(m.predictNetwork(ws, &named.Features))), append(ridge, off(m.predictRidge(ws, &named.Features)))
		fallback, tenant, used = append(fallback, off(byName)), append(tenant, off(byTenant)), append(used, off(out.Seconds))
		sources[out.Source]++
	}
	for _, row := range []struct {
		name   string
		errors traceErrors
	}{{"network", network}, {"ridge", ridge}, {"mean by name, else by user", fallback}, {"mean by user", tenant}, {"as used", used}} {
		t.Logf("%-28s %v", row.name, row.errors)
	}
	var sum, squares float64
	for i := range ridge {
		d := ridge[i]*ridge[i] - network[i]*network[i]
		sum, squares = sum+d, squares+d*d
	}
	n := float64(len(ridge))
	t.Logf("network over ridge: %.1f standard errors of the paired difference; used: %v", sum/math.Sqrt(squares-sum*sum/n), sources)
	for _, other := range []traceErrors{ridge, fallback, tenant} {
		if meanSquare(used) > 1.02*meanSquare(other) {
			t.Errorf("the predictor's choice is worse than always %v", other)
		}
	}
}
