package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// historyVersion is the supported version of Drover's JSON lines.
const historyVersion = 1

// HistoryJob is one line of Drover's own format: an ended job as a coordinator writes it. Times are
// Unix milliseconds, durations milliseconds, CPU millicores, memory bytes, I/O bytes per second.
// Unknown fields are ignored. The fields of the last group are optional. A line that has a checksum
// (package linesum) must have the right one.
type HistoryJob struct {
	Version  int            `json:"version"`
	Job      uint64         `json:"job"`
	Name     string         `json:"name"`
	Tenant   string         `json:"tenant"`
	Priority string         `json:"priority"` // high, low
	State    string         `json:"state"`
	SubmitMS int64          `json:"submit_ms"`
	StartMS  int64          `json:"start_ms,omitempty"`
	FinishMS int64          `json:"finish_ms,omitempty"`
	Stages   []HistoryStage `json:"stages"`

	DeadlineMS int64  `json:"deadline_ms,omitempty"`
	BoundMS    int64  `json:"bound_ms,omitempty"`
	OnMiss     string `json:"on_miss,omitempty"` // continue, lower, stop
	Project    string `json:"project,omitempty"`
	Tag        string `json:"tag,omitempty"`
}

// HistoryStage is a set of tasks with equal demands.
type HistoryStage struct {
	Name   string        `json:"name"`
	Kind   string        `json:"kind"` // map, reduce, group
	After  []int32       `json:"after,omitempty"`
	CPU    int64         `json:"cpu"`
	Memory int64         `json:"memory"`
	IO     int64         `json:"io"`
	Disk   int64         `json:"disk"`
	Tasks  []HistoryTask `json:"tasks"`
}

// HistoryTask is a task with its attempts in order.
type HistoryTask struct {
	InputBytes int64            `json:"input_bytes,omitempty"`
	Hosts      []string         `json:"hosts,omitempty"`
	HostBytes  []int64          `json:"host_bytes,omitempty"` // on each; absent if each stores all of it
	Attempts   []HistoryAttempt `json:"attempts,omitempty"`
}

// HistoryAttempt is one attempt.
type HistoryAttempt struct {
	Node       string `json:"node"`
	State      string `json:"state"`
	PlaceMS    int64  `json:"place_ms"`
	EndMS      int64  `json:"end_ms"`
	RunMS      int64  `json:"run_ms,omitempty"`
	StartingMS int64  `json:"starting_ms,omitempty"` // absent in older histories
}

// durations returns how long a task starts and then runs, in ms: those of its last successful
// attempt, else of its last attempt. An attempt without a running time counts as running from its
// placement to its end.
func (t *HistoryTask) durations() (start, run int64) {
	for i := range t.Attempts {
		a := &t.Attempts[i]
		if a.State == "succeeded" || i == len(t.Attempts)-1 {
			if start, run = a.StartingMS, a.RunMS; run <= 0 {
				start, run = 0, a.EndMS-a.PlaceMS
			}
		}
	}
	if len(t.Attempts) > 0 {
		run = max(minRunMS, run)
	}
	return max(0, start), max(0, run)
}

// minRunMS is the least run time of an attempted task, in ms: without it a policy could place any
// number of tasks at one time.
const minRunMS = 1

// dropIdle removes tasks that never had an attempt, because the job was stopped before, and stages
// without tasks, such as the map stage of an empty input. Successors of such a stage then follow
// its predecessors.
func (j *HistoryJob) dropIdle() {
	var kept []HistoryStage
	before := make([][]int32, len(j.Stages)) // new indices that replace a stage
	for k := range j.Stages {
		g := j.Stages[k]
		var after []int32
		for _, a := range g.After {
			after = append(after, before[a]...)
		}
		slices.Sort(after)
		g.After = slices.Compact(after)
		g.Tasks = slices.DeleteFunc(g.Tasks, func(t HistoryTask) bool { return len(t.Attempts) == 0 })
		if len(g.Tasks) == 0 {
			before[k] = g.After
			continue
		}
		before[k] = []int32{int32(len(kept))}
		kept = append(kept, g)
	}
	j.Stages = kept
}

// History is a list of jobs in Drover's own format.
type History struct {
	Jobs []HistoryJob
	Count
}

// Limits of a line, so that a corrupt file is an error and not a wrong simulation.
const (
	maxMS    = int64(maxSeconds) * 1000 // the year 2096
	maxTasks = 10_000_000
)

// ReadHistory reads Drover's own JSON lines, one job each.
func ReadHistory(r io.Reader, o Options) (*History, error) {
	h := &History{}
	var err error
	h.Count, err = scanLines(r, o, func(_ int, text []byte) error {
		if err := linesum.Check(text); err != nil {
			return err
		}
		var j HistoryJob
		dec := json.NewDecoder(bytes.NewReader(text))
		if err := dec.Decode(&j); err != nil {
			return fmt.Errorf("expected a JSON object of one job: %w", err)
		}
		if dec.More() {
			return fmt.Errorf("expected one JSON object per line, found more")
		}
		if err := j.check(); err != nil {
			return err
		}
		j.dropIdle()
		if len(j.Stages) == 0 {
			return errNothingToSimulate
		}
		h.Jobs = append(h.Jobs, j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (j *HistoryJob) check() error {
	if j.Version != historyVersion {
		return fmt.Errorf("version is %d: this program reads version %d", j.Version, historyVersion)
	}
	bad := func(ms int64) bool { return ms < 0 || ms > maxMS }
	if bad(j.SubmitMS) || bad(j.StartMS) || bad(j.FinishMS) || bad(j.DeadlineMS) || bad(j.BoundMS) {
		return fmt.Errorf("job %d: a time is negative or above %d ms", j.Job, maxMS)
	}
	if j.DeadlineMS > 0 && j.DeadlineMS < j.SubmitMS {
		return fmt.Errorf("job %d: deadline_ms is %d, before submit_ms, which is %d", j.Job, j.DeadlineMS, j.SubmitMS)
	}
	if err := checkNames(j.Name, j.Tenant, j.Project); err != nil {
		return fmt.Errorf("job %d: %w", j.Job, err)
	}
	if !slices.Contains([]string{"", "low", "high"}, j.Priority) {
		return fmt.Errorf("job %d: priority is %q: expected low or high", j.Job, truncate(j.Priority))
	}
	if !slices.Contains([]string{"", "continue", "lower", "stop"}, j.OnMiss) {
		return fmt.Errorf("job %d: on_miss is %q: expected continue, lower or stop", j.Job, truncate(j.OnMiss))
	}
	if len(j.Stages) > scheduler.MaxStages {
		return fmt.Errorf("job %d: %d stages: at most %d", j.Job, len(j.Stages), scheduler.MaxStages)
	}
	for k := range j.Stages {
		if err := j.Stages[k].check(k); err != nil {
			return fmt.Errorf("job %d stage %d: %w", j.Job, k, err)
		}
	}
	return nil
}

func (g *HistoryStage) check(k int) error {
	if _, ok := stageKinds[g.Kind]; !ok {
		return fmt.Errorf("kind is %q: expected map, reduce or group", truncate(g.Kind))
	}
	if err := checkNames(g.Name); err != nil {
		return err
	}
	if err := (scheduler.Resources{g.CPU, g.Memory, g.IO}).Check(); err != nil {
		return err
	}
	if g.Disk < 0 || g.Disk > scheduler.MaxAmount {
		return fmt.Errorf("disk is %d: expected a valid number of bytes", g.Disk)
	}
	if len(g.Tasks) > maxTasks {
		return fmt.Errorf("%d tasks: expected at most %d", len(g.Tasks), maxTasks)
	}
	for _, a := range g.After {
		if a < 0 || int(a) >= k {
			return fmt.Errorf("after has stage %d: expected an earlier stage", a)
		}
	}
	for i := range g.Tasks {
		t := &g.Tasks[i]
		start, run := t.durations()
		if t.InputBytes < 0 || t.InputBytes > scheduler.MaxAmount || len(t.Hosts) > scheduler.MaxReplicas || start > maxMS || run > maxMS {
			return fmt.Errorf("task %d: out of range: %d input bytes, %d hosts, starting %d ms, running %d ms", i, t.InputBytes, len(t.Hosts), start, run)
		}
		if len(t.HostBytes) > 0 && len(t.HostBytes) != len(t.Hosts) || slices.ContainsFunc(t.HostBytes, func(n int64) bool { return n < 0 || n > t.InputBytes }) {
			return fmt.Errorf("task %d: %d hosts with the bytes %v: expected as many, each at most the task's %d input bytes", i, len(t.Hosts), t.HostBytes, t.InputBytes)
		}
		if err := checkNames(t.Hosts...); err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
		for k := range t.Attempts {
			if err := checkNames(t.Attempts[k].Node); err != nil {
				return fmt.Errorf("task %d: %w", i, err)
			}
		}
	}
	return nil
}

// checkNames returns an error for a name that simulations refuse.
func checkNames(names ...string) error {
	for _, n := range names {
		if err := scheduler.CheckName(n); err != nil {
			return err
		}
	}
	return nil
}

var stageKinds = map[string]scheduler.StageKind{"map": scheduler.KindMap, "reduce": scheduler.KindReduce, "group": scheduler.KindGroup}

// HistoryRule configures the replay of a history.
type HistoryRule struct {
	// Nodes are the nodes of the simulated cluster. Hosts of other names hold no data.
	Nodes []engine.Node
}

// Workload makes the jobs of the history. The first submission is at second 0, and each task takes
// as long to start and to run as it did.
func (h *History) Workload(rule HistoryRule) *Workload {
	w := &Workload{Count: h.Count}
	tenant, ids := tenantIDs(w), map[string]scheduler.NodeID{}
	for i := range rule.Nodes {
		ids[rule.Nodes[i].Name] = scheduler.NodeID(i)
	}
	first := int64(0)
	for i := range h.Jobs {
		if s := h.Jobs[i].SubmitMS; i == 0 || s < first {
			first = s
		}
	}
	projects := map[projectKey]int{}
	for i := range h.Jobs {
		in := &h.Jobs[i]
		j := engine.Job{Name: in.Name, Tag: in.Tag, Tenant: tenant(tenantOrDefault(in.Tenant)), Submit: millis(in.SubmitMS - first), Bound: millis(in.BoundMS)}
		if in.DeadlineMS > 0 {
			j.Deadline = max(j.Submit+1, millis(in.DeadlineMS-first)) // later, if within the same millisecond
		}
		j.Priority = map[string]scheduler.Priority{"high": scheduler.PriorityHigh}[in.Priority]
		j.OnMiss = map[string]scheduler.OnMiss{"stop": scheduler.OnMissStop}[in.OnMiss] // lower continues as well
		for k := range in.Stages {
			j.Stages = append(j.Stages, in.Stages[k].stage(ids))
		}
		w.joinProject(&j, in.Project, projects)
		w.Jobs = append(w.Jobs, j)
	}
	w.sort()
	return w
}

func tenantOrDefault(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// projectKey names a project: each tenant has its own.
type projectKey struct {
	tenant scheduler.TenantID
	name   string
}

// joinProject adds a job to a project. As in a coordinator, the simulation does not know how many jobs a project will get.
func (w *Workload) joinProject(j *engine.Job, name string, projects map[projectKey]int) {
	if name == "" {
		return
	}
	key := projectKey{j.Tenant, name}
	p, ok := projects[key]
	if !ok {
		w.Projects = append(w.Projects, engine.Project{Name: name, Tenant: j.Tenant, Open: true})
		p = len(w.Projects)
		projects[key] = p
	}
	j.Project = p
}

func (g *HistoryStage) stage(ids map[string]scheduler.NodeID) engine.Stage {
	s := engine.Stage{Name: g.Name, Kind: stageKinds[g.Kind], After: g.After, Tasks: int32(len(g.Tasks)), Disk: g.Disk,
		Demand: scheduler.Resources{g.CPU, g.Memory, g.IO}, WorkPerTask: make([]time.Duration, len(g.Tasks))}
	in := &scheduler.Inputs{Start: []int32{0}}
	hasInput := false
	scattered := slices.ContainsFunc(g.Tasks, func(t HistoryTask) bool { return len(t.HostBytes) > 0 })
	for i := range g.Tasks {
		t := &g.Tasks[i]
		start, run := t.durations()
		s.WorkPerTask[i] = millis(run)
		if start > 0 && s.StartDelays == nil {
			s.StartDelays = make([]time.Duration, len(g.Tasks))
		}
		if start > 0 {
			s.StartDelays[i] = millis(start)
		}
		in.Bytes = append(in.Bytes, t.InputBytes)
		hasInput = hasInput || t.InputBytes > 0
		for k, host := range t.Hosts {
			id, ok := ids[host]
			if !ok || slices.Contains(in.Nodes[in.Start[i]:], id) {
				continue
			}
			in.Nodes = append(in.Nodes, id)
			switch {
			case len(t.HostBytes) > 0:
				in.Local = append(in.Local, t.HostBytes[k])
			case scattered:
				in.Local = append(in.Local, t.InputBytes)
			}
		}
		in.Start = append(in.Start, int32(len(in.Nodes)))
	}
	if hasInput {
		s.Inputs = in
	}
	return s
}

// NodeNames lists the nodes that occur in a history, in order of name.
func (h *History) NodeNames() []string {
	seen := map[string]bool{}
	for i := range h.Jobs {
		for k := range h.Jobs[i].Stages {
			for t := range h.Jobs[i].Stages[k].Tasks {
				task := &h.Jobs[i].Stages[k].Tasks[t]
				for _, host := range task.Hosts {
					seen[host] = true
				}
				for a := range task.Attempts {
					seen[task.Attempts[a].Node] = true
				}
			}
		}
	}
	var out []string
	for name := range seen {
		if name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
