package run

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// Outage is an entry of a cluster file's outages or maintenance: nodes that are away for a time. A
// node is named, or all nodes of a rack are.
type Outage struct {
	Nodes []string `json:"nodes"`
	Rack  string   `json:"rack"`
	From  string   `json:"from"` // "90m" after second 0
	To    string   `json:"to"`   // "": for good
	// Drain is how long before From the nodes get no new tasks. Only maintenance has it; schedulers
	// know of maintenance from the start.
	Drain string `json:"drain"`
}

// absences returns when each of the nodes is away: outages, maintenance, and the times before a
// group joins and after it leaves. groups is the position in the file of each node's group.
func (c *Cluster) absences(nodes []engine.Node, groups []int) ([]engine.Absence, error) {
	var out []engine.Absence
	for i := range nodes {
		a, err := c.Nodes[groups[i]].absences(scheduler.NodeID(i))
		if err != nil {
			return nil, fmt.Errorf("nodes[%d] (%s): %w", groups[i], c.Nodes[groups[i]].Name, err)
		}
		out = append(out, a...)
	}
	for _, list := range []struct {
		name   string
		of     []Outage
		drains bool
	}{{"outages", c.Outages, false}, {"maintenance", c.Maintenance, true}} {
		for i := range list.of {
			o := &list.of[i]
			a, err := o.absences(nodes)
			if err == nil && o.Drain != "" && !list.drains {
				err = fmt.Errorf("an outage comes without a warning: use \"maintenance\" for drain")
			}
			if err != nil {
				return nil, fmt.Errorf("%s[%d]: %w", list.name, i, err)
			}
			for k := range a {
				a[k].Known = list.drains
			}
			out = append(out, a...)
		}
	}
	slices.SortStableFunc(out, func(a, b engine.Absence) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Node, b.Node)) })
	return out, nil
}

// maxOffset limits the times of a cluster file.
const maxOffset = 100 * 365 * 24 * time.Hour

// parseOffset parses a time after second 0; "" is 0.
func parseOffset(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxOffset {
		return 0, fmt.Errorf("%s is %q: expected a time after the start, as \"90m\" or \"36h\"", name, text)
	}
	return d, nil
}

// absences returns when a node of the group is away because it joins late or leaves.
func (m *NodeGroup) absences(id scheduler.NodeID) ([]engine.Absence, error) {
	join, err := parseOffset("join", m.Join)
	if err != nil {
		return nil, err
	}
	leave, err := parseOffset("leave", m.Leave)
	if err != nil {
		return nil, err
	}
	drain, err := parseOffset("drain", m.Drain)
	if err != nil {
		return nil, err
	}
	var out []engine.Absence
	if join > 0 {
		out = append(out, engine.Absence{Node: id, To: join})
	}
	if m.Leave != "" {
		if leave <= join {
			return nil, fmt.Errorf("leave is %q and join is %q: a node leaves after it has joined", m.Leave, m.Join)
		}
		out = append(out, engine.Absence{Node: id, From: leave, Drain: drain, Known: true})
	} else if m.Drain != "" {
		return nil, fmt.Errorf("drain is %q, but the nodes do not leave: set leave", m.Drain)
	}
	return out, nil
}

func (o *Outage) absences(nodes []engine.Node) ([]engine.Absence, error) {
	from, err := parseOffset("from", o.From)
	if err != nil {
		return nil, err
	}
	to, err := parseOffset("to", o.To)
	if err != nil {
		return nil, err
	}
	drain, err := parseOffset("drain", o.Drain)
	if err != nil {
		return nil, err
	}
	if o.To != "" && to <= from {
		return nil, fmt.Errorf("it ends at %q, not after it begins at %q", o.To, o.From)
	}
	picked := map[scheduler.NodeID]bool{}
	for i := range nodes {
		if o.Rack != "" && nodes[i].Path == o.Rack {
			picked[scheduler.NodeID(i)] = true
		}
	}
	if o.Rack != "" && len(picked) == 0 {
		return nil, fmt.Errorf("no node is in rack %q", o.Rack)
	}
	for _, name := range o.Nodes {
		i := slices.IndexFunc(nodes, func(n engine.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no node %q: the first is %q", name, nodes[0].Name)
		}
		picked[scheduler.NodeID(i)] = true
	}
	if len(picked) == 0 {
		return nil, fmt.Errorf("no nodes: set nodes or rack")
	}
	var out []engine.Absence
	for i := range nodes {
		if picked[scheduler.NodeID(i)] {
			out = append(out, engine.Absence{Node: scheduler.NodeID(i), From: from, To: to, Drain: drain})
		}
	}
	return out, nil
}
