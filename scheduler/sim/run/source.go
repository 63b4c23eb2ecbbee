package run

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Source is the origin of jobs.
type Source struct {
	// Format is one of Formats.
	Format string
	// File is the path of the trace, or the generator's name.
	File    string
	Rule    map[string]string
	SkipBad bool
	// Fluid: the jobs are for the fluid model.
	Fluid bool
}

// Formats lists the formats of a Source.
var Formats = []string{"swim", "swf", "jsonl", "slurm", "rumen", "alibaba", "google", "generate"}

// LoadedSource is a loaded Source: a workload for every seed, and the nodes that the trace itself
// names, if any.
type LoadedSource struct {
	Workload workloadFunc
	Nodes    []engine.Node
	Count    trace.Count
	// swim and fluidRule make the jobs of the fluid model of a SWIM trace.
	swim      *trace.Swim
	fluidRule trace.FluidRule
}

// Load loads a source. Without a cluster, a history (jsonl, rumen) is replayed on nodes like kind with
// the names that occur in it; formats of namesNoMachines need a cluster.
func (s *Source) Load(cluster []engine.Node, kind NodeGroup) (*LoadedSource, error) {
	if s.Format == "generate" {
		if _, err := trace.Generate(s.File, s.Rule, 1); err != nil {
			return nil, err
		}
		return &LoadedSource{Workload: func(seed uint64, _ []engine.Node) (*trace.Workload, error) {
			return trace.Generate(s.File, s.Rule, seed)
		}}, nil
	}
	if !slices.Contains(Formats, s.Format) {
		return nil, fmt.Errorf("format %q: use one of %s", s.Format, strings.Join(Formats, ", "))
	}
	f, err := trace.Open(s.File)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, fmt.Errorf("workload %s: no such file (name a generator with -format generate)", s.File)
		}
		return nil, err
	}
	defer f.Close()
	if cluster == nil && slices.Contains(namesNoMachines, s.Format) {
		return nil, fmt.Errorf("%s: the format %s does not state the machines' sizes: give them with -nodes, -cpu and -memory, or with -cluster FILE", s.File, s.Format)
	}
	o := trace.Options{Name: s.File, SkipBad: s.SkipBad}
	switch s.Format {
	case "swim":
		t, err := trace.ReadSwim(f, o)
		if err != nil {
			return nil, err
		}
		return s.loadSwim(t)
	case "swf":
		t, err := trace.ReadSWF(f, o)
		if err != nil {
			return nil, err
		}
		return s.loadSWF(t, cluster == nil)
	default:
		h, err := s.readHistory(f, o, cluster)
		if err != nil {
			return nil, err
		}
		return s.loadHistory(h, cluster, kind)
	}
}

// readHistory reads a format whose tasks are replayed as they were.
func (s *Source) readHistory(r io.Reader, o trace.Options, cluster []engine.Node) (*trace.History, error) {
	switch s.Format {
	case "slurm":
		return trace.ReadSlurm(r, o)
	case "rumen":
		return trace.ReadRumen(r, o)
	case "alibaba":
		return trace.ReadAlibaba(r, o, largestMachine(cluster))
	case "google":
		return trace.ReadGoogle(r, o, largestMachine(cluster))
	default:
		return trace.ReadHistory(r, o)
	}
}

// namesNoMachines are the formats that do not tell the machines' sizes.
var namesNoMachines = []string{"slurm", "alibaba", "google"}

// largestMachine returns the largest capacity of each resource among the machines.
func largestMachine(cluster []engine.Node) scheduler.Resources {
	var out scheduler.Resources
	for i := range cluster {
		for k, amount := range cluster[i].Capacity {
			out[k] = max(out[k], amount)
		}
	}
	return out
}

func fixedWorkload(w *trace.Workload) workloadFunc {
	return func(uint64, []engine.Node) (*trace.Workload, error) { return w, nil }
}

func (s *Source) loadSwim(t *trace.Swim) (*LoadedSource, error) {
	rule := trace.DefaultSwimRule
	l := &LoadedSource{Count: t.Count, swim: t, fluidRule: trace.SchedsimRule}
	settings, ofFluid := swimSettings(&rule), fluidSettings(&l.fluidRule)
	if s.Fluid {
		settings = ofFluid
	} else {
		for _, x := range ofFluid {
			if _, ok := s.Rule[x.name]; ok {
				return nil, fmt.Errorf("the rule of swim: %s is a setting of the fluid model: leave it out, or give -model fluid", x.name)
			}
		}
	}
	if err := applySettings("the rule of swim", settings, s.Rule); err != nil {
		return nil, err
	}
	if err := rule.Check(); err != nil {
		return nil, fmt.Errorf("the rule of swim: %w", err)
	}
	l.Workload = fixedWorkload(t.Workload(rule))
	return l, nil
}

// loadSWF makes the workload of a trace and, if needsNodes, the machine that its header describes.
func (s *Source) loadSWF(t *trace.SWF, needsNodes bool) (*LoadedSource, error) {
	var rule trace.SWFRule
	if err := applySettings("the rule of swf", swfSettings(&rule), s.Rule); err != nil {
		return nil, err
	}
	l := &LoadedSource{Count: t.Count, Workload: fixedWorkload(t.Workload(rule))}
	if needsNodes {
		var err error
		if l.Nodes, err = t.PoolNode(rule); err != nil {
			return nil, fmt.Errorf("%s: %w", s.File, err)
		}
	}
	return l, nil
}

func (s *Source) loadHistory(h *trace.History, cluster []engine.Node, kind NodeGroup) (*LoadedSource, error) {
	if err := applySettings("the rule of "+s.Format, nil, s.Rule); err != nil {
		return nil, err
	}
	l := &LoadedSource{Count: h.Count}
	if cluster == nil {
		c := Cluster{}
		for _, name := range h.NodeNames() {
			m := kind
			m.Name, m.Count = name, 1
			c.Nodes = append(c.Nodes, m)
		}
		if len(c.Nodes) == 0 {
			c.Nodes = []NodeGroup{kind}
		}
		var err error
		if l.Nodes, err = c.Build(); err != nil {
			return nil, err
		}
	}
	l.Workload = func(_ uint64, nodes []engine.Node) (*trace.Workload, error) {
		return h.Workload(trace.HistoryRule{Nodes: nodes}), nil
	}
	return l, nil
}

// RuleHelp lists the settings of a format's rule, one per line.
func RuleHelp(format string) string {
	switch format {
	case "swim":
		return settingsHelp(swimSettings(&trace.SwimRule{})) + " with -model fluid, instead of these:\n" + settingsHelp(fluidSettings(&trace.FluidRule{}))
	case "swf":
		return settingsHelp(swfSettings(&trace.SWFRule{}))
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
