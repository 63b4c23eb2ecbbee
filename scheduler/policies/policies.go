// Package policies is the table of schedulers: an explicit list that maps names to constructors. A policy is added with
// one line in table and a file of its own; nothing registers itself. The coordinator, the simulator, the benchmarks and
// the conformance suite (package policytest) all take their policies from here.
package policies

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// Kind is the type of a parameter.
type Kind uint8

// The kinds of parameters and examples of their values.
const (
	Int      Kind = iota + 1 // 3
	Float                    // 0.5
	Bool                     // true, false
	Duration                 // 90s, 10ms
	Choice                   // one of Param.Choices
)

// String returns the kind's name for help texts.
func (k Kind) String() string {
	return enum.Name("kind", k, []string{Int: "int", Float: "float", Bool: "bool", Duration: "duration", Choice: "choice"})
}

// Param is a parameter of a policy.
type Param struct {
	Name    string
	Kind    Kind
	Default string
	Help    string
	Min     float64 // inclusive range of Int, Float and Duration (in seconds), if Max > Min
	Max     float64
	Choices []string // of a Choice
}

// Info is one policy of the table.
type Info struct {
	Name   string
	Help   string // one line
	Params []Param
	// SimOnly policies know true job sizes, so they run in simulations only.
	SimOnly bool
	// Reserves policies make and release reservations. Other policies do neither: the caller must
	// release the reservations of an earlier policy before the first decision.
	Reserves bool
	new      func(paramValues) scheduler.Policy
}

// paramValues are the values of all parameters of one policy, as Param.parse returns them.
type paramValues map[string]any

func (v paramValues) int(name string) int                { return v[name].(int) }
func (v paramValues) float(name string) float64          { return v[name].(float64) }
func (v paramValues) bool(name string) bool              { return v[name].(bool) }
func (v paramValues) duration(name string) time.Duration { return v[name].(time.Duration) }
func (v paramValues) choice(name string) string          { return v[name].(string) }

func withCommonParams(table ...Info) []Info {
	for i := range table {
		table[i].Params = append(slices.Clip(table[i].Params), speculateParam)
	}
	return table
}

// New returns a policy. Omitted parameters take their defaults. An unknown name or a value out of
// range is an error that says what to write.
func New(name string, params map[string]string) (scheduler.Policy, error) {
	info, err := Get(name)
	if err != nil {
		return nil, err
	}
	if _, unknown := WithoutUnknown(name, params); len(unknown) > 0 {
		return nil, fmt.Errorf("scheduler %q: unknown parameter %q%s", name, unknown[0], suggest(unknown[0], info.paramNames()))
	}
	v := paramValues{}
	for _, p := range info.Params {
		value, set := params[p.Name]
		if !set {
			value = p.Default
		}
		if v[p.Name], err = p.parse(value); err != nil {
			return nil, fmt.Errorf("scheduler %q: %w", name, err)
		}
	}
	p := info.new(v)
	if f := v.float(speculateParam.Name); f > 0 {
		p = &speculativePolicy{Policy: p, factor: f}
	}
	return p, nil
}

// WithoutUnknown returns params without those that a policy of the table does not have, and the
// names of these, in order. Another version of the program may have chosen them.
func WithoutUnknown(name string, params map[string]string) (known map[string]string, unknown []string) {
	info, err := Get(name)
	if err != nil {
		return params, nil
	}
	known = maps.Clone(params)
	for _, k := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(info.paramNames(), k) {
			unknown = append(unknown, k)
			delete(known, k)
		}
	}
	return known, unknown
}

// Get returns a policy of the table, or an error that suggests a name.
func Get(name string) (Info, error) {
	for _, i := range table {
		if i.Name == name {
			return i, nil
		}
	}
	return Info{}, fmt.Errorf("unknown scheduler %q%s", name, suggest(name, Names()))
}

// Names returns the names of the policies in the order of the table.
func Names() []string {
	var out []string
	for _, i := range table {
		out = append(out, i.Name)
	}
	return out
}

// All returns a copy of the table.
func All() []Info { return slices.Clone(table) }

// parse returns a value of the parameter, in the type that paramValues has for its kind.
func (p *Param) parse(text string) (value any, err error) {
	number, want := p.Min, ""
	switch p.Kind {
	case Int:
		n, e := strconv.Atoi(text)
		value, number, err, want = n, float64(n), e, "a whole number such as 3"
	case Float:
		number, err = strconv.ParseFloat(text, 64)
		value, want = number, "a number such as 0.5"
	case Duration:
		d, e := time.ParseDuration(text)
		value, number, err, want = d, d.Seconds(), e, "a duration such as 90s, 15m or 2h"
	case Bool:
		if value, want = text == "true", "true or false"; text != "true" && text != "false" {
			err = errors.New("no bool")
		}
	case Choice:
		if value, want = text, "one of "+strings.Join(p.Choices, ", "); !slices.Contains(p.Choices, text) {
			err = errors.New("no choice")
		}
	default:
		panic(fmt.Sprintf("parameter %q has kind %d", p.Name, p.Kind))
	}
	if err != nil {
		return nil, fmt.Errorf("parameter %q is %q: want %s", p.Name, text, want)
	}
	if p.Max > p.Min && !(number >= p.Min && number <= p.Max) {
		return nil, fmt.Errorf("parameter %q is %q: want %v to %v", p.Name, text, p.Min, p.Max)
	}
	return value, nil
}

func (i *Info) paramNames() []string {
	var out []string
	for _, p := range i.Params {
		out = append(out, p.Name)
	}
	return out
}

// suggest returns the end of an error message: the nearest known name, or all of them if none is near.
func suggest(name string, known []string) string {
	if near := jobspec.Suggest(name, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ": use one of " + strings.Join(known, ", ")
}
