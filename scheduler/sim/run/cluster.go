package run

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// NodeGroup describes nodes of one kind: an entry of a cluster file.
type NodeGroup struct {
	Name      string  `json:"name"`  // prefix; the name itself if count is 1
	Count     int     `json:"count"` // 0 counts as 1
	Rack      string  `json:"rack"`  // "/r1"; empty: racks of rack_size
	RackSize  int     `json:"rack_size"`
	CPU       string  `json:"cpu"`    // "32" or "500m"
	Memory    string  `json:"memory"` // "128GiB"
	IO        string  `json:"io"`     // "1GB/s", of each disk
	Disks     int     `json:"disks"`  // 0 counts as 1
	DiskSpace string  `json:"disk_space"`
	Swap      string  `json:"swap"`
	Speed     float64 `json:"speed"` // 0 counts as 1
	// Join and Leave are when the nodes join and leave the cluster, after second 0: a cluster that
	// grows and shrinks. "" means at the start and never. For Drain before Leave they get no new tasks.
	Join  string `json:"join"`
	Leave string `json:"leave"`
	Drain string `json:"drain"`
}

// Cluster is a cluster file.
type Cluster struct {
	Nodes   []NodeGroup `json:"nodes"`
	Tenants []Tenant    `json:"tenants"` // none: those of the workload, all of weight 1
	// Outages take nodes away together with their tasks; maintenance lets them drain first.
	Outages     []Outage `json:"outages"`
	Maintenance []Outage `json:"maintenance"`
	// Suspend is the cost of suspension on every node; absent: measuredSuspendSpeed.
	Suspend *scheduler.SuspendSpeed `json:"suspend,omitempty"`
}

// measuredSuspendSpeed is the cost of suspension on the project's emulated test machines: freeze 32
// ms, thaw 12 ms; swap 100 MB out in 0.55 s and in in 0.33 s; checkpoint 1.3 s plus 1.7 s per 100
// MB; restore 2.6 s plus 1 s per 100 MB.
var measuredSuspendSpeed = scheduler.SuspendSpeed{Freeze: 32 * time.Millisecond, ThawAfterFreeze: 12 * time.Millisecond, Swap: 0, SwapPerS: 182e6, SwapBackPerS: 300e6,
	Checkpoint: 1300 * time.Millisecond, CheckpointPerS: 59e6, Restore: 2600 * time.Millisecond, RestorePerS: 100e6, TransferPerS: 100e6}

// ReadCluster reads a cluster file.
func ReadCluster(r io.Reader) (*Cluster, error) {
	dec := json.NewDecoder(io.LimitReader(r, 64<<20))
	dec.DisallowUnknownFields()
	var c Cluster
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("cluster file: expected a JSON object with \"nodes\": %w", err)
	}
	return &c, nil
}

// Build makes the nodes of the cluster.
func (c *Cluster) Build() ([]engine.Node, error) {
	nodes, _, err := c.BuildAll()
	return nodes, err
}

// BuildAll makes the nodes of the cluster and the times at which they are away.
func (c *Cluster) BuildAll() ([]engine.Node, []engine.Absence, error) {
	nodes, groups, err := c.build()
	if err != nil {
		return nil, nil, err
	}
	absences, err := c.absences(nodes, groups)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster file: %w", err)
	}
	return nodes, absences, nil
}

// build returns the nodes, and the position in the file of each node's group.
func (c *Cluster) build() (out []engine.Node, groups []int, err error) {
	names := map[string]bool{}
	cost := measuredSuspendSpeed
	if c.Suspend != nil {
		cost = *c.Suspend
	}
	for i := range c.Nodes {
		m := &c.Nodes[i]
		if err := m.check(); err != nil {
			return nil, nil, fmt.Errorf("nodes[%d] (%s): %w", i, m.Name, err)
		}
		spec, err := m.nodeSpec()
		if err != nil {
			return nil, nil, fmt.Errorf("nodes[%d] (%s): %w", i, m.Name, err)
		}
		count := max(1, m.Count)
		if len(out)+count > scheduler.MaxNodes {
			return nil, nil, fmt.Errorf("nodes[%d] (%s): more than %d nodes", i, m.Name, scheduler.MaxNodes)
		}
		for k := range count {
			n := engine.Node{NodeSpec: spec, Speed: m.Speed}
			n.Speeds = cost
			if n.Name = m.Name; count > 1 || n.Name == "" {
				n.Name = fmt.Sprintf("%s%d", namePrefix(m.Name), k+1)
			}
			if names[n.Name] {
				return nil, nil, fmt.Errorf("nodes[%d] (%s): the name %q is used twice: give each entry a name of its own", i, m.Name, n.Name)
			}
			names[n.Name] = true
			if n.Path = m.Rack; n.Path == "" {
				n.Path = fmt.Sprintf("/rack%d", len(out)/max(1, valueOrDefault(m.RackSize, 40)))
			}
			out, groups = append(out, n), append(groups, i)
		}
	}
	if len(out) == 0 {
		return nil, nil, fmt.Errorf("cluster file: no nodes")
	}
	return out, groups, nil
}

// check returns an error for counts out of range. 0 stands for the default.
func (m *NodeGroup) check() error {
	for _, x := range []struct {
		name  string
		value int
		most  int
	}{{"count", m.Count, scheduler.MaxNodes}, {"rack_size", m.RackSize, scheduler.MaxNodes}, {"disks", m.Disks, scheduler.MaxDisks}} {
		if x.value < 0 || x.value > x.most {
			return fmt.Errorf("%s is %d: expected 1 to %d", x.name, x.value, x.most)
		}
	}
	if m.Speed != 0 && !(m.Speed >= 1e-6 && m.Speed <= 1e6) {
		return fmt.Errorf("speed is %v: expected a number from 0.000001 to 1000000", m.Speed)
	}
	return nil
}

func namePrefix(s string) string {
	if s == "" {
		return "node"
	}
	return s
}

func valueOrDefault(v, d int) int {
	if v <= 0 {
		return d
	}
	return v
}

func (m *NodeGroup) nodeSpec() (scheduler.NodeSpec, error) {
	var s scheduler.NodeSpec
	parse := func(to *int64, what, text, def string, f func(string) (int64, error)) error {
		if text == "" {
			text = def
		}
		v, err := f(text)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		*to = v
		return nil
	}
	var io, space int64
	for _, err := range []error{
		parse(&s.Capacity[scheduler.CPU], "cpu", m.CPU, "8", jobspec.ParseCPU),
		parse(&s.Capacity[scheduler.Memory], "memory", m.Memory, "32GiB", jobspec.ParseSize),
		parse(&io, "io", m.IO, "200MiB/s", jobspec.ParseRate),
		parse(&space, "disk_space", m.DiskSpace, "1TiB", jobspec.ParseSize),
		parse(&s.Swap, "swap", m.Swap, "0B", jobspec.ParseSize),
	} {
		if err != nil {
			return s, err
		}
	}
	if s.Capacity[scheduler.CPU] <= 0 {
		return s, fmt.Errorf("cpu is 0: no task could ever run there")
	}
	if s.Capacity[scheduler.Memory] <= 0 {
		return s, fmt.Errorf("memory is 0: no task could ever run there")
	}
	if s.Swap == 0 {
		s.Swap = s.Capacity[scheduler.Memory]
	}
	for d := range valueOrDefault(m.Disks, 1) {
		s.Disks = append(s.Disks, scheduler.Disk{Name: fmt.Sprintf("disk%d", d), IO: io, Space: space})
		s.Capacity[scheduler.IO] += io
	}
	s.Levels = scheduler.AllLevels
	return s, nil
}
