// Package policies is the table of schedulers: an explicit list that maps names to
// constructors. A policy is added with one line in table and a file of its own;
// nothing registers itself. The coordinator, the simulator, the benchmarks and the
// conformance suite (package policytest) all take their policies from here.
package policies

import (
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
	Choices []string // of Choice
}

// Info is one policy of the table.
type Info struct {
	Name   string
	Help   string // one line
	Params []Param
	// SimOnly policies know true job sizes, so they run in simulations only.
	SimOnly bool
	new     func(paramValues) (scheduler.Policy, error)
}

// paramValues are the parameters of one policy, all present and checked.
type paramValues struct {
	policy string
	values map[string]string
}

// int returns the value of an Int parameter.
func (v paramValues) int(name string) int { n, _ := strconv.Atoi(v.get(name)); return n }

// float returns the value of a Float parameter.
func (v paramValues) float(name string) float64 {
	f, _ := strconv.ParseFloat(v.get(name), 64)
	return f
}

// bool returns the value of a Bool parameter.
func (v paramValues) bool(name string) bool { return v.get(name) == "true" }

// duration returns the value of a Duration parameter.
func (v paramValues) duration(name string) time.Duration {
	d, _ := time.ParseDuration(v.get(name))
	return d
}

// text returns the value of any parameter as it was written.
func (v paramValues) text(name string) string { return v.get(name) }

func (v paramValues) get(name string) string {
	s, ok := v.values[name]
	if !ok {
		panic(fmt.Sprintf("policies: %s reads parameter %q, which its Params do not list", v.policy, name))
	}
	return s
}

// New returns a policy. Parameters left out take their defaults. An unknown name or
// a value out of range is an error that says what to write.
func New(name string, params map[string]string) (scheduler.Policy, error) {
	info, err := Get(name)
	if err != nil {
		return nil, err
	}
	v := paramValues{policy: name, values: map[string]string{}}
	for _, p := range info.Params {
		v.values[p.Name] = p.Default
	}
	for _, k := range slices.Sorted(maps.Keys(params)) {
		i := slices.IndexFunc(info.Params, func(p Param) bool { return p.Name == k })
		if i < 0 {
			return nil, fmt.Errorf("scheduler %q: unknown parameter %q%s", name, k, suggest(k, paramNames(info)))
		}
		if err := info.Params[i].check(params[k]); err != nil {
			return nil, fmt.Errorf("scheduler %q: %w", name, err)
		}
		v.values[k] = params[k]
	}
	p, err := info.new(v)
	if err != nil {
		return nil, fmt.Errorf("scheduler %q: %w", name, err)
	}
	if f := v.float(speculateParam.Name); f > 0 {
		p = &speculativePolicy{Policy: p, factor: f}
	}
	return p, nil
}

// WithoutUnknown returns params without those that a policy of the table does not have, and the names
// of these, in order: another version of the program may have chosen them.
func WithoutUnknown(name string, params map[string]string) (known map[string]string, unknown []string) {
	info, err := Get(name)
	if err != nil {
		return params, nil
	}
	known = maps.Clone(params)
	for _, k := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(paramNames(info), k) {
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
			return i.withCommonParams(), nil
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
func All() []Info {
	out := slices.Clone(table)
	for k := range out {
		out[k] = out[k].withCommonParams()
	}
	return out
}

// withCommonParams returns i with the parameters that every policy has.
func (i Info) withCommonParams() Info {
	i.Params = append(slices.Clip(i.Params), speculateParam)
	return i
}

func (p *Param) check(value string) error {
	var num float64
	var err error
	switch p.Kind {
	case Int:
		var n int
		n, err = strconv.Atoi(value)
		num = float64(n)
	case Float:
		num, err = strconv.ParseFloat(value, 64)
	case Duration:
		var d time.Duration
		d, err = time.ParseDuration(value)
		num = d.Seconds()
	case Bool:
		if value != "true" && value != "false" {
			err = fmt.Errorf("use true or false")
		}
	case Choice:
		if !slices.Contains(p.Choices, value) {
			err = fmt.Errorf("use one of %s", strings.Join(p.Choices, ", "))
		}
	default:
		err = fmt.Errorf("parameter of kind %v", p.Kind)
	}
	if err != nil {
		return fmt.Errorf("parameter %q is %q: want %v: %w", p.Name, value, p.Kind, err)
	}
	if p.Max > p.Min && !(num >= p.Min && num <= p.Max) {
		return fmt.Errorf("parameter %q is %q: want %v to %v", p.Name, value, p.Min, p.Max)
	}
	return nil
}

func paramNames(i Info) []string {
	var out []string
	for _, p := range i.Params {
		out = append(out, p.Name)
	}
	return out
}

// suggest returns the end of an error message: the nearest known name, or all of
// them if none is near.
func suggest(name string, known []string) string {
	if near := jobspec.Suggest(name, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ": use one of " + strings.Join(known, ", ")
}
