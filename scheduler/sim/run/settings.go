package run

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/fluid"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// setting is a named value that a user can set as key=value.
type setting struct {
	name, help string
	set        func(text string) error
}

// applySettings applies the user's values in the order of the list. The error names an unknown or
// malformed setting.
func applySettings(what string, list []setting, values map[string]string) error {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].name
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, k) {
			if s := jobspec.Suggest(k, names); s != "" {
				return fmt.Errorf("%s has no setting %q: did you mean %q?", what, k, s)
			}
			if len(names) == 0 {
				return fmt.Errorf("%s has no setting %q, nor any other", what, k)
			}
			return fmt.Errorf("%s has no setting %q: use one of %s", what, k, strings.Join(names, ", "))
		}
	}
	for _, s := range list {
		if v, ok := values[s.name]; ok {
			if err := s.set(v); err != nil {
				return fmt.Errorf("%s: %s is %q: %w", what, s.name, v, err)
			}
		}
	}
	return nil
}

func setDuration(to *time.Duration) func(string) error {
	return func(s string) (err error) { *to, err = time.ParseDuration(s); return err }
}

func setFloat(to *float64) func(string) error {
	return func(s string) (err error) {
		if *to, err = strconv.ParseFloat(s, 64); err == nil && (math.IsNaN(*to) || math.IsInf(*to, 0)) {
			return fmt.Errorf("expected a finite number")
		}
		return err
	}
}

func setBool(to *bool) func(string) error {
	return func(s string) (err error) { *to, err = strconv.ParseBool(s); return err }
}

func setSize(to *int64) func(string) error {
	return func(s string) (err error) { *to, err = jobspec.ParseSize(s); return err }
}

func setRate(to *int64) func(string) error {
	return func(s string) (err error) { *to, err = jobspec.ParseRate(s); return err }
}

func setCPU(to *int64) func(string) error {
	return func(s string) (err error) { *to, err = jobspec.ParseCPU(s); return err }
}

func setInt[T int | int32](to *T) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		*to = T(n)
		return err
	}
}

// DefaultModels returns models with fixed transfer rates: 100 MiB/s on a local disk, 60 MiB/s
// within a rack and 30 MiB/s between racks, and three copies of each block.
func DefaultModels() engine.Models {
	return engine.Models{Transfer: engine.TransferFixed, LocalRate: 100 << 20, RackRate: 60 << 20, RemoteRate: 30 << 20, NodeLink: 120 << 20, RackLink: 1200 << 20,
		Replicas: 3, AcceptDeadlines: true}
}

func modelSettings(m *engine.Models) []setting {
	return []setting{
		{"launch", "time from a placement until the task begins", setDuration(&m.Launch)},
		{"transfer", "free, fixed or shared", func(s string) (err error) { m.Transfer, err = engine.ParseTransfer(s); return err }},
		{"local_rate", "rate of a local disk with one reader", setRate(&m.LocalRate)},
		{"rack_rate", "rate of one transfer within a rack", setRate(&m.RackRate)},
		{"remote_rate", "rate of one transfer between racks", setRate(&m.RemoteRate)},
		{"node_link", "capacity of a node's link (shared)", setRate(&m.NodeLink)},
		{"rack_link", "capacity of a rack's link (shared)", setRate(&m.RackLink)},
		{"enforced", "tasks use a disk at exactly their I/O demand", setBool(&m.EnforceIO)},
		{"replicas", "copies of each block", setInt(&m.Replicas)},
		{"spread", "standard deviation of the logarithm of a task's work", setFloat(&m.Spread)},
		{"straggler_part", "fraction of the attempts that are slow", setFloat(&m.StragglerFraction)},
		{"straggler_factor", "time of a slow attempt over the normal time", setFloat(&m.StragglerFactor)},
		{"mtbf", "a node's mean time between failures", setDuration(&m.MTBF)},
		{"repair", "a node's mean downtime", setDuration(&m.Repair)},
		{"estimate_error", "standard deviation of the logarithm of estimate over truth", setFloat(&m.EstimateError)},
		{"no_estimates", "hide run-time estimates from the scheduler", setBool(&m.NoEstimates)},
		{"memory_used", "fraction of its memory that a suspended task uses", setFloat(&m.MemoryUsedFraction)},
		{"kill_delay", "how long a killed task still occupies its resources", setDuration(&m.KillDelay)},
		{"heartbeat", "time between progress reports", setDuration(&m.Heartbeat)},
		{"accept", "accept every deadline without a guarantee; with false a scheduler that makes guarantees decides first", setBool(&m.AcceptDeadlines)},
	}
}

// ParseModels applies key=value settings to DefaultModels and checks the result.
func ParseModels(values map[string]string) (engine.Models, error) {
	m := DefaultModels()
	if err := applySettings("the simulated world", modelSettings(&m), values); err != nil {
		return m, err
	}
	return m, m.Check()
}

// ModelHelp lists the settings of ParseModels, one per line.
func ModelHelp() string {
	var m engine.Models
	return settingsHelp(modelSettings(&m))
}

func settingsHelp(list []setting) string {
	out := ""
	for _, s := range list {
		out += fmt.Sprintf("  %-18s %s\n", s.name, s.help)
	}
	return out
}

func swimSettings(r *trace.SwimRule) []setting {
	return []setting{
		{"block", "input of one map", setSize(&r.BlockBytes)},
		{"reduce_per", "shuffled bytes per reduce", setSize(&r.BytesPerReduce)},
		{"max_reduces", "maximum number of reduces of a job", setInt(&r.MaxReduces)},
		{"base", "time of a task in addition to its bytes", setDuration(&r.TaskOverhead)},
		{"map_rate", "bytes that a map processes per second", setRate(&r.MapRate)},
		{"reduce_rate", "bytes that a reduce processes per second", setRate(&r.ReduceRate)},
		{"map_cpu", "CPU of a map", setCPU(&r.MapDemand[scheduler.CPU])},
		{"map_memory", "memory of a map", setSize(&r.MapDemand[scheduler.Memory])},
		{"map_io", "disk I/O of a map", setRate(&r.MapDemand[scheduler.IO])},
		{"reduce_cpu", "CPU of a reduce", setCPU(&r.ReduceDemand[scheduler.CPU])},
		{"reduce_memory", "memory of a reduce", setSize(&r.ReduceDemand[scheduler.Memory])},
		{"reduce_io", "disk I/O of a reduce", setRate(&r.ReduceDemand[scheduler.IO])},
		{"slow_start", "fraction of the maps done before reduces start", setFloat(&r.SlowStart)},
		{"tenants", "number of tenants; jobs are assigned round-robin", setInt(&r.Tenants)},
	}
}

func swfSettings(r *trace.SWFRule) []setting {
	return []setting{
		{"tenants", "one tenant per user", setBool(&r.TenantPerUser)},
		{"memory_per_core", "memory charged per processor", setSize(&r.MemoryPerCore)},
	}
}

// fluidSettings are the settings of a SWIM trace's rule in the fluid model. The size replaces the
// whole rule, so it comes first.
func fluidSettings(r *trace.FluidRule) []setting {
	return []setting{
		{"size", "schedsim (input + 5 shuffle + output) or las_mq (LAS_MQ 5.4)", func(s string) error {
			switch s {
			case "schedsim":
				*r = trace.SchedsimRule
			case "las_mq":
				*r = trace.LASMQRule
			default:
				return fmt.Errorf("use schedsim or las_mq")
			}
			return nil
		}},
		{"load", "sum of the sizes over the duration of the trace", setFloat(&r.Load)},
	}
}

// queueSettings are the parameters of las_mq in the fluid model.
func queueSettings(q *fluid.Queues) []setting {
	return []setting{
		{"queues", "number of queues", setInt(&q.Count)},
		{"first", "threshold of the first queue, s", setFloat(&q.FirstThreshold)},
		{"step", "threshold over that of the previous queue", setFloat(&q.ThresholdRatio)},
		{"weight", "weight over that of the previous queue", setFloat(&q.WeightRatio)},
	}
}
