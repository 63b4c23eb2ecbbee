package reproduce

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler/sim/report"
)

//go:embed claims.json
var claimsJSON []byte

//go:embed calibration.json
var calibrationJSON []byte

// Kind is how a claim is tested.
type Kind string

// The kinds of claims.
const (
	// Ratio is a quotient, compared with the paper's by its distance from 1.
	Ratio Kind = "ratio"
	// Difference is a difference, compared with the paper's by its distance from 0.
	Difference Kind = "difference"
	// Sign is a difference of which the paper states only the sign.
	Sign Kind = "sign"
	// Equal and Value are numbers that must lie between Low and High.
	Equal Kind = "equal"
	Value Kind = "value"
)

// Claim is one number or order that a paper states.
type Claim struct {
	ID         string   `json:"id"`
	Paper      string   `json:"paper"`
	Figure     string   `json:"figure"`
	Text       string   `json:"claim"`
	Kind       Kind     `json:"kind"`
	PaperValue float64  `json:"paper_value"`
	Weight     float64  `json:"weight"`
	Low        *float64 `json:"low,omitempty"`
	High       *float64 `json:"high,omitempty"`
	Experiment string   `json:"experiment"`
	Conditions string   `json:"conditions"`
}

// LoadClaims returns the embedded claims.
func LoadClaims() ([]Claim, error) {
	var f struct {
		Version int     `json:"version"`
		Test    string  `json:"test"`
		Claims  []Claim `json:"claims"`
	}
	if err := json.Unmarshal(claimsJSON, &f); err != nil {
		return nil, fmt.Errorf("claims.json: %w", err)
	}
	for i := range f.Claims {
		c := &f.Claims[i]
		banded := c.Kind == Equal || c.Kind == Value
		if banded != (c.Low != nil && c.High != nil) || c.Weight <= 0 || c.Experiment == "" {
			return nil, fmt.Errorf("claims.json: claim %q: exactly the kinds equal and value need low and high, weight must be above 0 and experiment set", c.ID)
		}
	}
	return f.Claims, nil
}

// Parameter is a quantity that a paper does not state: the assumed value, its reason, and its
// plausible range.
type Parameter struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Why   string  `json:"why"`
}

// Calibration holds the parameters that the papers do not state, by name.
type Calibration struct {
	Parameters map[string]Parameter
	// Hash is the SHA-256 of calibration.json.
	Hash string
}

// LoadCalibration returns the embedded calibration.
func LoadCalibration() (*Calibration, error) {
	var f struct {
		Parameters map[string]Parameter `json:"parameters"`
	}
	if err := json.Unmarshal(calibrationJSON, &f); err != nil {
		return nil, fmt.Errorf("calibration.json: %w", err)
	}
	for k, p := range f.Parameters {
		if !(p.Low <= p.Value && p.Value <= p.High && p.Low < p.High) || p.Why == "" {
			return nil, fmt.Errorf("calibration.json: %s is %g, range %g to %g: the value must lie in the range and have a reason", k, p.Value, p.Low, p.High)
		}
	}
	h := sha256.Sum256(calibrationJSON)
	return &Calibration{Parameters: f.Parameters, Hash: hex.EncodeToString(h[:])}, nil
}

// withValue returns a copy of the calibration with one parameter changed.
func (c *Calibration) withValue(name string, value float64) *Calibration {
	out := &Calibration{Parameters: maps.Clone(c.Parameters), Hash: c.Hash}
	p := out.Parameters[name]
	p.Value = value
	out.Parameters[name] = p
	return out
}

// valuesHash returns a hash of the values of all parameters. The parameters that an experiment
// reads are unknown before it runs: Assumes names only those whose effect is measured.
func (c *Calibration) valuesHash() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(c.Parameters)) {
		fmt.Fprintf(h, "%s %g\n", name, c.Parameters[name].Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// get returns the value of a parameter. It panics on an unknown name, which is a programming error.
func (c *Calibration) get(name string) float64 {
	p, ok := c.Parameters[name]
	if !ok {
		panic("reproduce: calibration.json has no " + name)
	}
	return p.Value
}

// Verdict is a claim with its measured value and result.
type Verdict struct {
	Claim
	Ours   report.Interval
	Effect float64 // our distance over the paper's, for ratios and differences; NaN for other kinds
	// SignOK is whether our value has the paper's sign with an interval that excludes no effect.
	// For Equal and Value it is Reproduced.
	SignOK     bool
	Reproduced bool
	// Missing is the reason why there is no value, "" if there is one.
	Missing string
	// Why explains why the claim is not reproduced.
	Why string
}

// evaluateClaim tests a claim on its values, one per seed. exact means that the experiment is
// deterministic, so that one value suffices.
func evaluateClaim(c Claim, values []float64, exact bool) Verdict {
	v := Verdict{Claim: c, Ours: report.Estimate(values), Effect: math.NaN()}
	if len(values) == 0 {
		return v
	}
	if exact {
		v.Ours.HalfWidth = 0
	}
	none := 0.0
	switch c.Kind {
	case Equal, Value:
		v.Reproduced = v.Ours.Mean >= *c.Low && v.Ours.Mean <= *c.High
		v.SignOK = v.Reproduced
		return v
	case Ratio:
		none = 1
	case Difference, Sign:
	default:
		v.Missing = fmt.Sprintf("unknown kind %q", c.Kind)
		return v
	}
	v.SignOK = (v.Ours.Mean-none)*(c.PaperValue-none) > 0 && v.Ours.Excludes(none)
	if c.Kind == Sign {
		v.Reproduced = v.SignOK
		return v
	}
	v.Effect = (v.Ours.Mean - none) / (c.PaperValue - none)
	v.Reproduced = v.SignOK && v.Effect >= 0.5 && v.Effect <= 2
	return v
}

// Score counts the claims with the right sign and the reproduced claims, also by weight.
type Score struct {
	Claims, Signs, Reproduced            int
	Weight, SignWeight, ReproducedWeight float64
}

// scoreVerdicts returns the score of verdicts.
func scoreVerdicts(vs []Verdict) Score {
	var s Score
	for i := range vs {
		v := &vs[i]
		s.Claims++
		s.Weight += v.Weight
		if v.SignOK {
			s.Signs++
			s.SignWeight += v.Weight
		}
		if v.Reproduced {
			s.Reproduced++
			s.ReproducedWeight += v.Weight
		}
	}
	return s
}
