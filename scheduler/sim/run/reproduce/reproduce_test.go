package reproduce

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestEveryClaimHasAnExperimentThatMeasuresIt(t *testing.T) {
	claims, err := LoadClaims()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range claims {
		if seen[c.ID] {
			t.Errorf("claim %s occurs twice", c.ID)
		}
		seen[c.ID] = true
		if !slices.ContainsFunc(experiments(), func(e Experiment) bool { return e.Name == c.Experiment && e.Paper == c.Paper }) {
			t.Errorf("claim %s: no experiment %q of %s", c.ID, c.Experiment, c.Paper)
		}
		if !strings.HasPrefix(c.ID, c.Experiment+"/") {
			t.Errorf("claim %s is not below its experiment %s", c.ID, c.Experiment)
		}
	}
	cal, err := LoadCalibration()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range experiments() {
		for _, a := range e.Assumes {
			if _, ok := cal.Parameters[a]; !ok {
				t.Errorf("%s assumes %s, which calibration.json does not have", e.Name, a)
			}
		}
	}
}

func TestEvaluateClaim(t *testing.T) {
	low, high := 0.95, 1.05
	for name, c := range map[string]struct {
		claim      Claim
		values     []float64
		sign, good bool
	}{
		"a ratio like the paper's":     {Claim{Kind: Ratio, PaperValue: 0.9}, []float64{0.89, 0.90, 0.91}, true, true},
		"no effect is no reproduction": {Claim{Kind: Ratio, PaperValue: 0.9}, []float64{1, 1, 1}, false, false},
		"the interval holds 1":         {Claim{Kind: Ratio, PaperValue: 0.9}, []float64{0.8, 1.0, 1.1}, false, false},
		"the opposite sign":            {Claim{Kind: Ratio, PaperValue: 0.9}, []float64{1.1, 1.11, 1.12}, false, false},
		"three times the effect":       {Claim{Kind: Ratio, PaperValue: 0.9}, []float64{0.69, 0.70, 0.71}, true, false},
		"a third of the effect":        {Claim{Kind: Ratio, PaperValue: 1.3}, []float64{1.09, 1.10, 1.11}, true, false},
		"an order":                     {Claim{Kind: Sign, PaperValue: -1}, []float64{-0.2, -0.3, -0.25}, true, true},
		"an order within noise":        {Claim{Kind: Sign, PaperValue: -1}, []float64{-0.2, 0.3, -0.25}, false, false},
		"in its band":                  {Claim{Kind: Equal, PaperValue: 1, Low: &low, High: &high}, []float64{1.01, 0.99}, true, true},
		"out of its band":              {Claim{Kind: Equal, PaperValue: 1, Low: &low, High: &high}, []float64{1.2, 1.21}, false, false},
		"no value":                     {Claim{Kind: Ratio, PaperValue: 0.9}, nil, false, false},
	} {
		v := evaluateClaim(c.claim, c.values, false)
		if v.SignOK != c.sign || v.Reproduced != c.good {
			t.Errorf("%s: sign %v, reproduced %v, want %v, %v (%+v)", name, v.SignOK, v.Reproduced, c.sign, c.good, v.Ours)
		}
	}
	if v := evaluateClaim(Claim{Kind: Ratio, PaperValue: 0.5}, []float64{0.5}, true); !v.Reproduced || v.Effect != 1 || v.Ours.HalfWidth != 0 {
		t.Errorf("an exact experiment: %+v", v)
	}
	if v := evaluateClaim(Claim{Kind: Ratio, PaperValue: 0.5}, []float64{0.5}, false); v.SignOK || !math.IsInf(v.Ours.HalfWidth, 1) {
		t.Errorf("one seed proves nothing: %+v", v)
	}
}

func TestFig10bEqualJobs(t *testing.T) { // LAS_MQ Fig. 10b: FIFO 0.50, LAS_MQ 0.55 of Fair
	s, err := fig10b(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]float64{"fifo": 0.50, "las_mq": 0.55, "las": 1} {
		if math.Abs(s.Claims[k]-want) > 0.01 {
			t.Errorf("%s: %.3f of Fair, want %.2f", k, s.Claims[k], want)
		}
	}
}

func TestReportNamesMissingClaims(t *testing.T) {
	claims, err := LoadClaims()
	if err != nil {
		t.Fatal(err)
	}
	cal, err := LoadCalibration()
	if err != nil {
		t.Fatal(err)
	}
	picked, err := SelectExperiments("Fig. 10a", claims)
	if err != nil || len(picked) != 1 {
		t.Fatalf("%v, %v", picked, err)
	}
	env := &Env{Cal: cal}
	outs, err := (&Runner{Env: env, Claims: claims, Experiments: picked, Parallel: 1}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r := NewReport(outs, env, "drover sim reproduce")
	var md, html bytes.Buffer
	if err := r.markdown(&md, true); err != nil {
		t.Fatal(err)
	}
	if err := r.html(&html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 claims: 0", "not run", "give its path with -fb2010 FILE", cal.Hash} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, md.String())
		}
	}
	if !strings.Contains(html.String(), cal.Hash) {
		t.Error("the page lacks the calibration's hash")
	}
	all, err := SelectExperiments("", claims)
	some, err2 := SelectExperiments("claims", claims)
	if err != nil || err2 != nil || len(some) == 0 || slices.ContainsFunc(some, func(e Experiment) bool { return len(e.Metrics) > 0 }) || len(some) >= len(all) {
		t.Errorf("%d of %d experiments have claims: %v, %v", len(some), len(all), err, err2)
	}
	if _, err := SelectExperiments("Fig. 99", claims); err == nil {
		t.Error("an unknown figure is taken")
	}
}
