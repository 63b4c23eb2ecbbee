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

// Machines describes nodes of one kind: an entry of a cluster file.
type Machines struct {
	Name   string  `json:"name"`  // prefix; the name itself where count is 1
	Count  int     `json:"count"` // 0 counts as 1
	Rack   string  `json:"rack"`  // "/r1"; empty: racks of rack_size
	RackOf int     `json:"rack_size"`
	CPU    string  `json:"cpu"`    // "32" or "500m"
	Memory string  `json:"memory"` // "128GiB"
	IO     string  `json:"io"`     // "1GB/s", of each disk
	Disks  int     `json:"disks"`  // 0 counts as 1
	Space  string  `json:"disk_space"`
	Swap   string  `json:"swap"`
	Speed  float64 `json:"speed"` // 0 counts as 1
}

// Cluster is a cluster file.
type Cluster struct {
	Nodes []Machines `json:"nodes"`
	// Suspend is the cost of suspending on every node; absent: Measured.
	Suspend *scheduler.SuspendSpeed `json:"suspend,omitempty"`
}

// Measured is what suspending cost on the project's test machines, which
// are emulated: freeze 32 ms, thaw 12 ms, swap 100 MB in 0.55 s and back in
// 0.33 s, checkpoint 1.3 s and 100 MB in 1.7 s more, restore 2.6 s and 100 MB
// in 1 s.
var Measured = scheduler.SuspendSpeed{Freeze: 32 * time.Millisecond, ThawAfterFreeze: 12 * time.Millisecond, Swap: 0, SwapPerS: 182e6, SwapBackPerS: 300e6,
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

// Build makes the nodes.
func (c *Cluster) Build() ([]engine.Node, error) {
	var out []engine.Node
	cost := Measured
	if c.Suspend != nil {
		cost = *c.Suspend
	}
	for i := range c.Nodes {
		m := &c.Nodes[i]
		spec, err := m.spec()
		if err != nil {
			return nil, fmt.Errorf("nodes[%d] (%s): %w", i, m.Name, err)
		}
		count := max(1, m.Count)
		if len(out)+count > scheduler.MaxNodes {
			return nil, fmt.Errorf("nodes[%d] (%s): more than %d nodes", i, m.Name, scheduler.MaxNodes)
		}
		for k := range count {
			n := engine.Node{NodeSpec: spec, Speed: m.Speed}
			n.Speeds = cost
			if n.Name = m.Name; count > 1 || n.Name == "" {
				n.Name = fmt.Sprintf("%s%d", orNode(m.Name), k+1)
			}
			if n.Path = m.Rack; n.Path == "" {
				n.Path = fmt.Sprintf("/rack%d", len(out)/max(1, orDefault(m.RackOf, 40)))
			}
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("cluster file: no nodes")
	}
	return out, nil
}

func orNode(s string) string {
	if s == "" {
		return "node"
	}
	return s
}

func orDefault(v, d int) int {
	if v <= 0 {
		return d
	}
	return v
}

func (m *Machines) spec() (scheduler.NodeSpec, error) {
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
		parse(&space, "disk_space", m.Space, "1TiB", jobspec.ParseSize),
		parse(&s.Swap, "swap", m.Swap, "0B", jobspec.ParseSize),
	} {
		if err != nil {
			return s, err
		}
	}
	if s.Swap == 0 {
		s.Swap = s.Capacity[scheduler.Memory]
	}
	for d := range orDefault(m.Disks, 1) {
		s.Disks = append(s.Disks, scheduler.Disk{Name: fmt.Sprintf("disk%d", d), IO: io, Space: space})
		s.Capacity[scheduler.IO] += io
	}
	s.Levels = scheduler.AllLevels
	return s, nil
}
