package scheduler

import (
	"fmt"
	"slices"
)

// AddNode adds a node. Its id must be the next one.
func (e Events) AddNode(spec NodeSpec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	what := fmt.Sprintf("node %q", spec.Name)
	if int(spec.ID) != len(e.s.cluster.nodes) || spec.ID >= MaxNodes {
		return refuse(ErrInvalid, what, "its id is %d, the next one is %d", spec.ID, len(e.s.cluster.nodes))
	}
	if _, taken := e.s.cluster.nodeName[spec.Name]; taken {
		return refuse(ErrInvalid, what, "a node of that name exists: use UpdateNode")
	}
	n := &Node{}
	e.s.cluster.nodes = append(e.s.cluster.nodes, n)
	e.s.cluster.nodeName[spec.Name] = spec.ID
	e.s.cluster.fit.addNode()
	e.putNode(n, spec)
	return nil
}

// UpdateNode replaces the spec of a node except its id and name. A node may shrink below what runs on it: its Free is
// then negative, nothing is placed on it, and its attempts stay. Disks in use cannot be removed.
func (e Events) UpdateNode(spec NodeSpec) error {
	n, err := e.eventNode(spec.ID)
	if err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	what := fmt.Sprintf("node %q", n.Spec.Name)
	if spec.Name != n.Spec.Name {
		return refuse(ErrInvalid, what, "it cannot be renamed to %q", spec.Name)
	}
	if len(spec.Disks) < len(n.Disks) {
		for _, slot := range e.s.cluster.occupants(spec.ID) {
			a := e.s.Attempts().at(slot)
			if (a.Node == spec.ID && int(a.Disk) >= len(spec.Disks)) || (a.From == spec.ID && int(a.FromDisk) >= len(spec.Disks)) {
				return refuse(ErrInvalid, what, "attempt %s is on disk %d, which would be removed", a.ID, a.Disk)
			}
		}
	}
	e.s.cluster.countNode(n, -1)
	e.putNode(n, spec)
	return nil
}

// putNode replaces the spec of a node, which must be uncounted, and updates all indexes that depend on it.
func (e Events) putNode(n *Node, spec NodeSpec) {
	old := n.Spec
	n.Spec = spec
	n.Spec.Disks, n.Spec.Windows = slices.Clone(spec.Disks), slices.Clone(spec.Windows)
	n.Free = n.Free.Add(spec.Capacity.Sub(old.Capacity))
	n.SwapFree += spec.Swap - old.Swap
	disks := make([]DiskUse, len(spec.Disks))
	for i, d := range spec.Disks {
		disks[i] = DiskUse{d.IO, d.Space}
		if i < len(n.Disks) {
			disks[i].FreeIO += n.Disks[i].FreeIO - old.Disks[i].IO
			disks[i].FreeSpace += n.Disks[i].FreeSpace - old.Disks[i].Space
		}
	}
	if n.Disks = disks; len(disks) == 1 {
		n.Disks = append(n.firstDisk[:0], disks...)
	}
	c := &e.s.cluster
	rack, known := c.racks[spec.Path]
	if !known {
		rack = int32(len(c.racks))
		c.racks[spec.Path] = rack
	}
	n.Rack, n.path = rack, splitPath(spec.Path)
	for r, most := range spec.Capacity {
		c.fit.inverseCapacity[spec.ID][r] = 0
		if most > 0 {
			c.fit.inverseCapacity[spec.ID][r] = 1 / float64(most)
		}
	}
	c.countNode(n, +1)
	c.nodeChanged(n)
	c.updateFitIndex(spec.ID)
	e.s.countChange()
}

// SetDrain starts or ends draining: a draining node keeps its attempts and accepts no new ones.
func (e Events) SetDrain(id NodeID, draining bool) error {
	return e.setNode(id, func(n *NodeSpec) { n.Draining = draining })
}

// NodeUp reports that a node is up, or up again.
func (e Events) NodeUp(id NodeID) error { return e.setNode(id, func(n *NodeSpec) { n.Down = false }) }

// NodeLost reports that a node is gone: every attempt that is on it or migrates from or to it is lost, and its task is
// pending again. The owner reports lost map outputs with OutputLost, since State does not know where they are.
func (e Events) NodeLost(id NodeID, now Time) error {
	if err := e.setNode(id, func(n *NodeSpec) { n.Down = true }); err != nil {
		return err
	}
	for _, slot := range e.s.cluster.occupants(id) {
		e.endAttempt(e.s.Attempts().at(slot), OutcomeLost, now)
	}
	return nil
}

func (e Events) setNode(id NodeID, change func(*NodeSpec)) error {
	n, err := e.eventNode(id)
	if err != nil {
		return err
	}
	down, draining := n.Spec.Down, n.Spec.Draining
	e.s.cluster.countNode(n, -1)
	change(&n.Spec)
	e.s.cluster.countNode(n, +1)
	e.s.cluster.nodeChanged(n)
	if n.Spec.Down != down || n.Spec.Draining != draining {
		e.s.cluster.updateFitIndex(id)
		e.s.countChange()
	}
	return nil
}

func (e Events) eventNode(id NodeID) (*Node, error) {
	n := e.s.Node(id)
	if n == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no such node")
	}
	return n, nil
}

// PutTenant adds a tenant or replaces its spec. A new tenant's id must be the next one and its parent must exist. When
// a tenant moves to another parent, its use is charged to its new ancestors.
func (e Events) PutTenant(spec TenantSpec) error {
	if err := spec.validate(); err != nil {
		return err
	}
	tree, what := &e.s.tree, fmt.Sprintf("tenant %q", spec.Name)
	if id, ok := tree.tenantName[spec.Name]; ok && id != spec.ID {
		return refuse(ErrInvalid, what, "the name belongs to tenant %d", id)
	}
	if spec.Parent != NoTenant && tree.tenant(spec.Parent) == nil {
		return refuse(ErrUnknown, what, "its parent %d is unknown: put the parent first", spec.Parent)
	}
	t, levels := tree.tenant(spec.ID), 1
	if t != nil {
		levels = tree.height(spec.ID)
	} else if int(spec.ID) != len(tree.tenants) || spec.ID >= maxTenants {
		return refuse(ErrInvalid, what, "its id is %d, the next one is %d", spec.ID, len(tree.tenants))
	}
	for up := tree.tenant(spec.Parent); up != nil; up = tree.tenant(up.Spec.Parent) {
		if levels++; up == t {
			return refuse(ErrInvalid, what, "parent %d is below it: the tree would be a cycle", spec.Parent)
		}
	}
	if levels > MaxTenantDepth {
		return refuse(ErrInvalid, what, "the tree would be deeper than %d", MaxTenantDepth)
	}
	if t == nil {
		t = &Tenant{Spec: TenantSpec{Parent: NoTenant}, order: jobOrder{ofTenant: true}}
		tree.tenants = append(tree.tenants, t)
		tree.readyTenant.grow(int32(len(tree.tenants)))
	}
	tree.changes++
	tree.link(t, -1)
	delete(tree.tenantName, t.Spec.Name)
	t.Spec = spec
	tree.tenantName[spec.Name] = spec.ID
	tree.link(t, 1)
	e.s.countChange()
	return nil
}

// Events updates a State with events of the cluster: of nodes, tenants, projects, jobs and attempts.
type Events struct{ s *State }
