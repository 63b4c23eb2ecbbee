package run

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// setting is a named value that a user may set as key=value.
type setting struct {
	name, help string
	set        func(text string) error
}

// apply sets what a user gave, naming what is unknown or malformed.
func apply(what string, list []setting, values map[string]string) error {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].name
	}
	var keys []string
	for k := range values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		i := slices.Index(names, k)
		if i < 0 {
			if s := jobspec.Suggest(k, names); s != "" {
				return fmt.Errorf("%s has no setting %q: did you mean %q?", what, k, s)
			}
			return fmt.Errorf("%s has no setting %q: use one of %v", what, k, names)
		}
		if err := list[i].set(values[k]); err != nil {
			return fmt.Errorf("%s: %s is %q: %w", what, k, values[k], err)
		}
	}
	return nil
}

func setDuration(to *time.Duration) func(string) error {
	return func(s string) (err error) { *to, err = time.ParseDuration(s); return err }
}

func setFloat(to *float64) func(string) error {
	return func(s string) (err error) { *to, err = strconv.ParseFloat(s, 64); return err }
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

// DefaultModels move bytes at fixed rates: a local disk at 100 MiB/s, 60 MiB/s
// within a rack and 30 MiB/s between racks, three copies of each block.
func DefaultModels() engine.Models {
	return engine.Models{Transfer: engine.TransferFixed, LocalRate: 100 << 20, RackRate: 60 << 20, RemoteRate: 30 << 20, NodeLink: 120 << 20, RackLink: 1200 << 20,
		Replicas: 3, Accept: true}
}

func modelSettings(m *engine.Models) []setting {
	return []setting{
		{"launch", "time from a placement until its task begins", setDuration(&m.Launch)},
		{"transfer", "free, fixed or shared", func(s string) (err error) { m.Transfer, err = engine.ParseTransfer(s); return err }},
		{"local_rate", "a local disk for one reader", setRate(&m.LocalRate)},
		{"rack_rate", "one transfer within a rack", setRate(&m.RackRate)},
		{"remote_rate", "one transfer between racks", setRate(&m.RemoteRate)},
		{"node_link", "what a node's link carries (shared)", setRate(&m.NodeLink)},
		{"rack_link", "what a rack's link carries (shared)", setRate(&m.RackLink)},
		{"enforced", "tasks use a disk at their I/O demand, no more and no less", setBool(&m.Enforced)},
		{"replicas", "copies of each block", setInt(&m.Replicas)},
		{"spread", "deviation of the logarithm of a task's work", setFloat(&m.Spread)},
		{"straggler_part", "part of the attempts that are slow", setFloat(&m.StragglerPart)},
		{"straggler_factor", "how much slower they are", setFloat(&m.StragglerFactor)},
		{"mtbf", "a node's mean time between failures", setDuration(&m.MTBF)},
		{"repair", "its mean time of absence", setDuration(&m.Repair)},
		{"estimate_error", "deviation of the logarithm of estimate over truth", setFloat(&m.EstimateError)},
		{"no_estimates", "the scheduler is told no run times", setBool(&m.NoEstimates)},
		{"memory_used", "part of its memory a suspended task has in use", setFloat(&m.MemoryUsed)},
		{"kill_delay", "how long a killed task holds what it has", setDuration(&m.KillDelay)},
		{"heartbeat", "time between reports of progress", setDuration(&m.Heartbeat)},
		{"accept", "every deadline counts as promised", setBool(&m.Accept)},
	}
}

// ParseModels makes the models of key=value settings over DefaultModels.
func ParseModels(values map[string]string) (engine.Models, error) {
	m := DefaultModels()
	return m, apply("the world", modelSettings(&m), values)
}

// ModelHelp lists the settings of the world, one line each.
func ModelHelp() string {
	var m engine.Models
	return help(modelSettings(&m))
}

func help(list []setting) string {
	out := ""
	for _, s := range list {
		out += fmt.Sprintf("  %-18s %s\n", s.name, s.help)
	}
	return out
}

func swimSettings(r *trace.SwimRule) []setting {
	return []setting{
		{"block", "input of one map", setSize(&r.Block)},
		{"reduce_per", "shuffled bytes of one reduce", setSize(&r.ReducePer)},
		{"max_reduces", "reduces of a job at most", setInt(&r.MaxReduces)},
		{"base", "time of a task beside its bytes", setDuration(&r.Base)},
		{"map_rate", "bytes a map works through in a second", setRate(&r.MapRate)},
		{"reduce_rate", "bytes a reduce works through in a second", setRate(&r.ReduceRate)},
		{"map_cpu", "CPU of a map", setCPU(&r.Map[scheduler.CPU])},
		{"map_memory", "memory of a map", setSize(&r.Map[scheduler.Memory])},
		{"map_io", "disk I/O of a map", setRate(&r.Map[scheduler.IO])},
		{"reduce_cpu", "CPU of a reduce", setCPU(&r.Reduce[scheduler.CPU])},
		{"reduce_memory", "memory of a reduce", setSize(&r.Reduce[scheduler.Memory])},
		{"reduce_io", "disk I/O of a reduce", setRate(&r.Reduce[scheduler.IO])},
		{"slow_start", "part of the maps done before reduces start", setFloat(&r.SlowStart)},
		{"tenants", "tenants, in turn", setInt(&r.Tenants)},
	}
}

func swfSettings(r *trace.SWFRule) []setting {
	return []setting{
		{"tenants", "a tenant for each user", setBool(&r.Tenants)},
		{"memory_per_core", "memory charged with each processor", setSize(&r.MemoryPerCore)},
	}
}

func fluidSettings(r *trace.FluidRule, queues *[4]float64) []setting {
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
		{"load", "sum of the sizes over the span", setFloat(&r.Load)},
		{"queues", "queues of las_mq", setFloat(&queues[0])},
		{"first", "threshold of its first queue, s", setFloat(&queues[1])},
		{"step", "threshold over that of the queue before", setFloat(&queues[2])},
		{"weight", "weight over that of the queue before", setFloat(&queues[3])},
	}
}
