package reproduce

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"

	"github.com/drover-run/drover/scheduler/sim/report"
)

//go:embed claims.json
var claimsJSON []byte

//go:embed calibration.json
var calibrationJSON []byte

// Kind says how a claim is tested.
type Kind string

// The kinds of claims.
const (
	// Ratio: a number over another one, compared with the paper's by its
	// distance from 1.
	Ratio Kind = "ratio"
	// Difference: likewise, by its distance from 0.
	Difference Kind = "difference"
	// Sign: a difference, of which the paper gives the side of 0.
	Sign Kind = "sign"
	// Equal and Value: a number that lies between Low and High.
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
	Paper0     float64  `json:"paper_value"`
	Weight     float64  `json:"weight"`
	Low        *float64 `json:"low,omitempty"`
	High       *float64 `json:"high,omitempty"`
	Experiment string   `json:"experiment"`
	Conditions string   `json:"conditions"`
}

// Claims reads the claims that are part of the program.
func Claims() ([]Claim, error) {
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
			return nil, fmt.Errorf("claims.json: claim %q: low and high are for equal and value, and the weight is above 0", c.ID)
		}
	}
	return f.Claims, nil
}

// Parameter is what a paper leaves out: the value it is given, why, and how far
// it could as well be to either side.
type Parameter struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Why   string  `json:"why"`
}

// Calibration is the parameters that the papers leave out, by name.
type Calibration struct {
	Parameters map[string]Parameter
	// Hash is the SHA-256 of the file.
	Hash string
}

// LoadCalibration reads the calibration that is part of the program.
func LoadCalibration() (*Calibration, error) {
	var f struct {
		Parameters map[string]Parameter `json:"parameters"`
	}
	if err := json.Unmarshal(calibrationJSON, &f); err != nil {
		return nil, fmt.Errorf("calibration.json: %w", err)
	}
	for k, p := range f.Parameters {
		if !(p.Low <= p.Value && p.Value <= p.High && p.Low < p.High) || p.Why == "" {
			return nil, fmt.Errorf("calibration.json: %s is %g, from %g to %g: it must lie between them and have a reason", k, p.Value, p.Low, p.High)
		}
	}
	h := sha256.Sum256(calibrationJSON)
	return &Calibration{Parameters: f.Parameters, Hash: hex.EncodeToString(h[:])}, nil
}

// With is the calibration with one parameter at another value.
func (c *Calibration) With(name string, value float64) *Calibration {
	out := &Calibration{Parameters: maps.Clone(c.Parameters), Hash: c.Hash}
	p := out.Parameters[name]
	p.Value = value
	out.Parameters[name] = p
	return out
}

// values gives the values of some parameters.
func (c *Calibration) values(names []string) []float64 {
	out := make([]float64, len(names))
	for i, n := range names {
		out[i] = c.get(n)
	}
	return out
}

// get gives a value; a name that is not in the file is an error of ours.
func (c *Calibration) get(name string) float64 {
	p, ok := c.Parameters[name]
	if !ok {
		panic("reproduce: calibration.json has no " + name)
	}
	return p.Value
}

// Verdict is a claim and what became of it.
type Verdict struct {
	Claim
	Ours   report.Interval
	Effect float64 // ratio, difference: ours over the paper's distance; NaN for others
	// SignOK: the paper's sign and an interval that excludes none. Banded
	// claims have it when they lie in their band.
	SignOK     bool
	Reproduced bool
	// Missing says why there is no value, "" if there is one.
	Missing string
	// Why explains a miss.
	Why string
}

// Judge tests a claim on its values, one a seed. exact says that the
// experiment draws nothing, so one value is the truth.
func Judge(c Claim, values []float64, exact bool) Verdict {
	v := Verdict{Claim: c, Ours: report.Estimate(values), Effect: math.NaN()}
	if len(values) == 0 {
		return v
	}
	if exact {
		v.Ours.Half = 0
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
	v.SignOK = (v.Ours.Mean-none)*(c.Paper0-none) > 0 && v.Ours.Excludes(none)
	if c.Kind == Sign {
		v.Reproduced = v.SignOK
		return v
	}
	v.Effect = (v.Ours.Mean - none) / (c.Paper0 - none)
	v.Reproduced = v.SignOK && v.Effect >= 0.5 && v.Effect <= 2
	return v
}

// Score is the weighted part of claims with the right sign, and reproduced.
type Score struct {
	Claims, Signs, Reproduced     int
	Weight, SignWeight, RepWeight float64
}

// Count scores verdicts.
func Count(vs []Verdict) Score {
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
			s.RepWeight += v.Weight
		}
	}
	return s
}
