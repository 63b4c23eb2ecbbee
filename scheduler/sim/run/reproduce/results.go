package reproduce

import (
	"fmt"
	"math"
)

// Row is a claim as the pages show it and results.json stores it.
type Row struct {
	ID         string  `json:"id"`
	Paper      string  `json:"paper"`
	Figure     string  `json:"figure"`
	Claim      string  `json:"claim"`
	Kind       Kind    `json:"kind"`
	PaperValue float64 `json:"paper_value"`
	Ours       float64 `json:"ours"`
	HalfWidth  float64 `json:"ci95"`
	Seeds      int     `json:"seeds"`
	Effect     float64 `json:"effect"` // our distance over the paper's; 0 if undefined
	SignOK     bool    `json:"sign_ok"`
	Reproduced bool    `json:"reproduced"`
	Weight     float64 `json:"weight"`
	Why        string  `json:"why,omitempty"`
	Missing    string  `json:"missing,omitempty"`
	// DerivedFrom is the claim from whose value this one follows, "" for a fact of its own.
	DerivedFrom string `json:"derived_from,omitempty"`
}

func finiteOrZero(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

func (v *Verdict) row() Row {
	return Row{v.ID, v.Paper, v.Figure, v.Text, v.Kind, v.PaperValue, finiteOrZero(v.Ours.Mean), finiteOrZero(v.Ours.HalfWidth), v.Ours.N, finiteOrZero(v.Effect), v.SignOK, v.Reproduced, v.Weight, v.Why, v.Missing, derivedClaims[v.ID]}
}

// Rows returns the rows of all claims.
func (r *Report) Rows() []Row {
	var out []Row
	for _, v := range r.Verdicts() {
		out = append(out, v.row())
	}
	return out
}

// Result returns "reproduced", "sign only", "missed" or "not run".
func (w Row) Result() string {
	switch {
	case w.Missing != "":
		return "not run"
	case w.Reproduced:
		return "reproduced"
	case w.SignOK:
		return "sign only"
	default:
		return "missed"
	}
}

// PaperText returns the paper's value, or the sign for a claim of kind Sign.
func (w Row) PaperText() string {
	if w.Kind == Sign {
		return map[bool]string{true: "above", false: "below"}[w.PaperValue > 0]
	}
	return fmt.Sprintf("%.4g", w.PaperValue)
}

// ResultText returns Result, with a mark if the claim states no fact of its own.
func (w Row) ResultText() string {
	if w.DerivedFrom != "" {
		return w.Result() + ", derived"
	}
	return w.Result()
}

// OursText returns our value with its interval.
func (w Row) OursText() string {
	if w.Missing != "" {
		return "–"
	}
	if w.HalfWidth == 0 {
		return fmt.Sprintf("%.4g", w.Ours)
	}
	return fmt.Sprintf("%.4g ± %.2g", w.Ours, w.HalfWidth)
}

// EffectText returns the effect size.
func (w Row) EffectText() string {
	if w.Effect == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", w.Effect)
}

// shiftRow is a Shift in results.json.
type shiftRow struct {
	Claim     string  `json:"claim"`
	Parameter string  `json:"parameter"`
	Value     float64 `json:"value"`
	Ours      float64 `json:"ours"`
	Verdict   string  `json:"verdict"`
}

func (r *Report) shifts() []shiftRow {
	out := []shiftRow{}
	for _, o := range r.Outcomes {
		for _, s := range o.Sensitivity {
			out = append(out, shiftRow{s.Claim, s.Parameter, s.Value, finiteOrZero(s.Mean), s.Verdict})
		}
	}
	return out
}

// gridRow is a TableRow in results.json.
type gridRow struct {
	Workload       string             `json:"workload"`
	Metric         string             `json:"metric"`
	HigherIsBetter bool               `json:"higher_is_better"`
	Values         map[string]float64 `json:"values"`
	Best           string             `json:"best_specialist"`
	Worse          float64            `json:"worse"`
	HalfWidth      float64            `json:"worse_ci95"`
	Flag           bool               `json:"more_than_5_percent_worse"`
	Why            string             `json:"why,omitempty"`
}

func (r *Report) grid() []gridRow {
	out := []gridRow{}
	for _, x := range r.AllRows() {
		g := gridRow{x.Workload, x.Name, x.HigherIsBetter, map[string]float64{}, x.Best, finiteOrZero(x.Worse.Mean), finiteOrZero(x.Worse.HalfWidth), x.Flag, ""}
		for n, v := range x.Values {
			g.Values[n] = finiteOrZero(v.Mean)
		}
		if x.Flag {
			g.Why = x.Why
		}
		out = append(out, g)
	}
	return out
}
