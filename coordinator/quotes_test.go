package coordinator

import (
	"slices"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/obstacle"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// What cannot be computed anew stays as it was.
func TestExpectedIsKeptWhereThereIsNoNewOne(t *testing.T) {
	q, due := newQuoter(), time.Unix(1000, 0)
	ends := func(at scheduler.Time) *forecast.Expected {
		return &forecast.Expected{Ends: map[scheduler.JobID]scheduler.Time{1: at}}
	}
	found := func(n scheduler.NodeID) map[scheduler.StageID]obstacle.Set {
		return map[scheduler.StageID]obstacle.Set{{Job: 1}: {Node: n}}
	}
	for i, c := range []struct {
		expected  *forecast.Expected
		obstacles map[scheduler.StageID]obstacle.Set
		wantEnd   scheduler.Time
		wantNode  scheduler.NodeID
	}{
		{ends(5), found(2), 5, 2},
		{nil, found(3), 5, 3}, // too many tasks wait
		{nil, nil, 5, 3},      // there is no State
		{ends(6), found(4), 6, 4},
	} {
		got := q.setExpected(c.expected, c.obstacles, due)
		if end, node := got.Ends[1], q.lastObstacles()[scheduler.StageID{Job: 1}].Node; end != c.wantEnd || q.expected.Ends[1] != end || node != c.wantNode || q.expectedDue != due {
			t.Errorf("result %d: end %d, obstacles on node %d, want %d and %d", i, end, node, c.wantEnd, c.wantNode)
		}
	}
}

func TestWarningsOfWeakQuotes(t *testing.T) {
	const weak = "the deadline is met with probability 0.40 only (history)"
	at := time.Unix(1000, 0)
	for what, c := range map[string]struct {
		require, probability float64
		guaranteed           bool
		offer                offer
		want                 []string
	}{
		"a strong one":                        {0, 0.6, false, offer{0.95, 0.5}, nil},
		"a weak one":                          {0, 0.4, false, offer{0.95, 0.5}, []string{weak + "; deadline 1970-01-01T00:16:40Z is met with 0.95"}},
		"a weak one that is guaranteed":       {0, 0.4, true, offer{0.95, 0.5}, nil},
		"less than is required":               {0.9, 0.4, false, offer{0.9, 0.9}, []string{weak + "; deadline 1970-01-01T00:16:40Z is met with 0.90"}},
		"an offer that is met with less":      {0, 0.4, false, offer{0.3, 0.5}, []string{weak}},
		"an offer that is met with no more":   {0, 0.4, false, offer{0.4, 0.5}, []string{weak}},
		"more than is required, but weak too": {0.3, 0.4, false, offer{0.95, 0.5}, []string{weak + "; deadline 1970-01-01T00:16:40Z is met with 0.95"}},
	} {
		r := dryRunResult{quote: &droverv1.Quote{DeadlineMs: at.UnixMilli(), Probability: c.probability, Basis: "history"}, offer: c.offer, offerMs: at.UnixMilli()}
		if c.guaranteed {
			r.quote.GuaranteedMs = at.UnixMilli()
		}
		if got := r.allWarnings(c.require); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// Of a refused job the deadline is offered that is met as required, and of a weak one that is not refused a better one.
func TestOfferedProbability(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 1, 1)).AddTenants("a")
	deadline := w.Now.Add(5 * time.Second)
	q := forecast.Query{Job: scheduler.JobSpec{Deadline: deadline}, Stages: []scheduler.StageSpec{{Tasks: 1, Demand: schedtest.R(1, 1, 1), Estimate: 10 * time.Second}}, Samples: minSamples}
	for what, c := range map[string]struct {
		offer       offer
		probability float64 // of the job's own deadline
		want        float64 // of the offer
		later       bool    // than the job's own deadline
	}{
		"refused":                {offer{0.3, 0.5}, 0.2, 0.3, true},
		"not refused, but weak":  {offer{0.3, 0.5}, 0.4, counterOfferProbability, true},
		"weak, nothing required": {offer{counterOfferProbability, 0.5}, 0.4, counterOfferProbability, true},
		"strong":                 {offer{0.9, 0.9}, 0.92, 0.9, false},
		"planned":                {offer{0.3, 0.3}, 0.4, 0.3, false},
	} {
		r := dryRunResult{quote: &droverv1.Quote{Probability: c.probability}, offer: c.offer}
		if err := r.findOffer(&forecast.Forecaster{}, &draft{state: w.State}, q, w.Now); err != nil {
			t.Fatal(err)
		}
		if own := unixMillis(deadline); r.offer.probability != c.want || (r.offerMs > own) != c.later || r.offerMs < own {
			t.Errorf("%s: a deadline at %d is offered with %.2f, want %.2f; its own is at %d", what, r.offerMs, r.offer.probability, c.want, own)
		}
	}
}
