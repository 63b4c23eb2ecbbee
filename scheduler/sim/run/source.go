package run

import (
	"fmt"
	"os"
	"slices"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Source is where jobs come from.
type Source struct {
	// Format is swim, swf, jsonl or generate.
	Format string
	// File is the trace, or the generator's name.
	File    string
	Rule    map[string]string
	SkipBad bool
}

// Formats lists the formats.
var Formats = []string{"swim", "swf", "jsonl", "generate"}

// Loaded is a source that was read: a workload for every seed, and the
// machines that the trace itself names, if it does.
type Loaded struct {
	Workload func(seed uint64) (*trace.Workload, error)
	Nodes    []engine.Node
	Count    trace.Count
	Swim     *trace.Swim
}

// Load reads a source. kind is the machine on which a history without a
// cluster is replayed.
func (s *Source) Load(cluster []engine.Node, kind Machines) (*Loaded, error) {
	if s.Format == "generate" {
		if _, err := trace.Generate(s.File, s.Rule, 1); err != nil {
			return nil, err
		}
		return &Loaded{Workload: func(seed uint64) (*trace.Workload, error) { return trace.Generate(s.File, s.Rule, seed) }}, nil
	}
	if !slices.Contains(Formats, s.Format) {
		return nil, fmt.Errorf("format %q: use one of %v", s.Format, Formats)
	}
	f, err := trace.Open(s.File)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, fmt.Errorf("workload %s: there is no such file (generators are named with -format generate)", s.File)
		}
		return nil, err
	}
	defer f.Close()
	o := trace.Options{Name: s.File, SkipBad: s.SkipBad}
	switch s.Format {
	case "swim":
		t, err := trace.ReadSwim(f, o)
		if err != nil {
			return nil, err
		}
		return s.swim(t)
	case "swf":
		t, err := trace.ReadSWF(f, o)
		if err != nil {
			return nil, err
		}
		return s.swf(t)
	default:
		h, err := trace.ReadHistory(f, o)
		if err != nil {
			return nil, err
		}
		return s.history(h, cluster, kind)
	}
}

func fixed(w *trace.Workload) func(uint64) (*trace.Workload, error) {
	return func(uint64) (*trace.Workload, error) { return w, nil }
}

func (s *Source) swim(t *trace.Swim) (*Loaded, error) {
	rule := trace.DefaultSwimRule
	l := &Loaded{Count: t.Count, Swim: t}
	var q [4]float64
	if apply("", fluidSettings(&trace.FluidRule{}, &q), s.Rule) == nil && len(s.Rule) > 0 {
		l.Workload = fixed(t.Workload(rule)) // settings of the fluid model alone
		return l, nil
	}
	if err := apply("the rule of swim", swimSettings(&rule), s.Rule); err != nil {
		return nil, err
	}
	l.Workload = fixed(t.Workload(rule))
	return l, nil
}

func (s *Source) swf(t *trace.SWF) (*Loaded, error) {
	var rule trace.SWFRule
	if err := apply("the rule of swf", swfSettings(&rule), s.Rule); err != nil {
		return nil, err
	}
	l := &Loaded{Count: t.Count, Workload: fixed(t.Workload(rule))}
	if t.Processors > 0 {
		var err error
		if l.Nodes, err = t.Pool(rule); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (s *Source) history(h *trace.History, cluster []engine.Node, kind Machines) (*Loaded, error) {
	if err := apply("the rule of jsonl", nil, s.Rule); err != nil {
		return nil, err
	}
	l := &Loaded{Count: h.Count}
	if cluster == nil {
		c := Cluster{}
		for _, name := range h.NodeNames() {
			m := kind
			m.Name, m.Count = name, 1
			c.Nodes = append(c.Nodes, m)
		}
		if len(c.Nodes) == 0 {
			c.Nodes = []Machines{kind}
		}
		var err error
		if l.Nodes, err = c.Build(); err != nil {
			return nil, err
		}
		cluster = l.Nodes
	}
	l.Workload = fixed(h.Workload(trace.HistoryRule{Nodes: cluster}))
	return l, nil
}

// RuleHelp lists the settings of a format's rule, one line each.
func RuleHelp(format string) string {
	switch format {
	case "swim":
		var q [4]float64
		return help(swimSettings(&trace.SwimRule{})) + " of the fluid model:\n" + help(fluidSettings(&trace.FluidRule{}, &q))
	case "swf":
		return help(swfSettings(&trace.SWFRule{}))
	case "generate":
		out := ""
		for _, g := range trace.Generators() {
			out += fmt.Sprintf(" %s: %s\n", g.Name, g.Help)
			for _, p := range g.Params {
				out += fmt.Sprintf("  %-18s %s (%g)\n", p.Name, p.Help, p.Default)
			}
		}
		return out
	default:
		return ""
	}
}
