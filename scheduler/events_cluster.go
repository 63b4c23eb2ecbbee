package scheduler

import (
	"fmt"
	"slices"
)

// AddNode adds a node. Its id must be the next one. Like every event it is refused during a
// try (Mark).
func (s *State) AddNode(spec NodeSpec) error {
	if err := s.refuseInTry("add a node"); err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	what := fmt.Sprintf("node %q", spec.Name)
	if int(spec.ID) != len(s.nodes) || spec.ID >= MaxNodes {
		return refuse(ErrInvalid, what, "its id is %d, the next one is %d", spec.ID, len(s.nodes))
	}
	if _, ok := s.nodeName[spec.Name]; ok {
		return refuse(ErrExists, what, "a node of that name exists: use UpdateNode")
	}
	n := &Node{Spec: spec, Free: spec.Capacity, SwapFree: spec.Swap, Disks: make([]DiskUse, len(spec.Disks))}
	n.Spec.Disks = slices.Clone(spec.Disks)
	for i, d := range spec.Disks {
		n.Disks[i] = DiskUse{d.IO, d.Space}
	}
	s.setRack(n)
	s.nodes = append(s.nodes, n)
	s.nodeName[spec.Name] = spec.ID
	s.fit.addNode()
	s.fit.setScale(spec.ID, spec.Capacity)
	s.countNode(n, +1)
	s.nodeChangeCount++
	s.updateFitIndex(spec.ID)
	s.countChange()
	return nil
}

// UpdateNode replaces the spec of a node except its id and name. A node may shrink below what
// runs on it: its Free is then negative, nothing is placed on it, and its attempts stay. Disks
// in use cannot be removed.
func (s *State) UpdateNode(spec NodeSpec) error {
	n, err := s.eventNode(spec.ID)
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
		for _, slot := range s.occupants(spec.ID) {
			a := s.attemptAt(slot)
			if (a.Node == spec.ID && int(a.Disk) >= len(spec.Disks)) || (a.From == spec.ID && int(a.FromDisk) >= len(spec.Disks)) {
				return refuse(ErrBusy, what, "attempt %s is on disk %d, which would be removed", a.ID, a.Disk)
			}
		}
	}
	s.countNode(n, -1)
	old := n.Spec
	n.Spec = spec
	n.Spec.Disks = slices.Clone(spec.Disks)
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
	n.Disks = disks
	s.setRack(n)
	s.fit.setScale(spec.ID, spec.Capacity)
	s.countNode(n, +1)
	s.nodeChangeCount++
	s.updateFitIndex(spec.ID)
	s.countChange()
	return nil
}

// SetDrain starts or ends draining: a draining node keeps its attempts and accepts no new
// ones.
func (s *State) SetDrain(id NodeID, draining bool) error {
	return s.setNode(id, func(n *NodeSpec) { n.Draining = draining })
}

// NodeUp reports that a node is up, or up again.
func (s *State) NodeUp(id NodeID) error {
	return s.setNode(id, func(n *NodeSpec) { n.Down = false })
}

// NodeLost reports that a node is gone: every attempt that is on it or migrates from or to it
// is lost, and its task is pending again. The owner reports lost map outputs with OutputLost,
// since State does not know where they are.
func (s *State) NodeLost(id NodeID, now Time) error {
	if err := s.setNode(id, func(n *NodeSpec) { n.Down = true }); err != nil {
		return err
	}
	for _, slot := range s.occupants(id) {
		s.endAttempt(s.attemptAt(slot), OutcomeLost, now)
	}
	return nil
}

// setNode changes the state of a node and the sums that depend on it.
func (s *State) setNode(id NodeID, change func(*NodeSpec)) error {
	n, err := s.eventNode(id)
	if err != nil {
		return err
	}
	was := n.Spec
	s.countNode(n, -1)
	change(&n.Spec)
	s.countNode(n, +1)
	s.nodeChangeCount++
	if was.Down == n.Spec.Down && was.Draining == n.Spec.Draining {
		return nil
	}
	s.updateFitIndex(id)
	s.countChange()
	return nil
}

func (s *State) eventNode(id NodeID) (*Node, error) {
	if err := s.refuseInTry("change a node"); err != nil {
		return nil, err
	}
	n := s.Node(id)
	if n == nil {
		return nil, refuse(ErrUnknown, fmt.Sprintf("node %d", id), "there is no such node")
	}
	return n, nil
}

// occupants returns the slots of the attempts that occupy something on a node: first those on
// it in order of placement, then those migrating away from it.
func (s *State) occupants(id NodeID) []int32 {
	return append(slices.Clone(s.nodes[id].attempts), s.nodes[id].moving...)
}

// countNode adds a node to the sums over all nodes (sign 1) or removes it (sign -1).
func (s *State) countNode(n *Node, sign int64) {
	if !n.Spec.Down {
		s.total = s.total.Add(n.Spec.Capacity.Times(sign))
	}
	if n.Schedulable() {
		s.schedulable += int32(sign)
	}
}

// setRack sets the node's rack number and path from its spec.
func (s *State) setRack(n *Node) {
	rack, ok := s.racks[n.Spec.Path]
	if !ok {
		rack = int32(len(s.racks))
		s.racks[n.Spec.Path] = rack
	}
	n.Rack, n.path = rack, splitPath(n.Spec.Path)
}

// PutTenant adds a tenant or replaces its spec. A new tenant's id must be the next one and its
// parent must exist. When a tenant moves to another parent, its use is charged to its new
// ancestors.
func (s *State) PutTenant(spec TenantSpec) error {
	if err := s.refuseInTry("put a tenant"); err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return err
	}
	what := fmt.Sprintf("tenant %q", spec.Name)
	if id, ok := s.tenantName[spec.Name]; ok && id != spec.ID {
		return refuse(ErrExists, what, "the name belongs to tenant %d", id)
	}
	if spec.Parent != NoTenant && s.Tenant(spec.Parent) == nil {
		return refuse(ErrUnknown, what, "its parent %d is unknown: put the parent first", spec.Parent)
	}
	if old := s.Tenant(spec.ID); old != nil {
		return s.replaceTenant(old, spec, what)
	}
	if int(spec.ID) != len(s.tenants) || spec.ID >= MaxTenants {
		return refuse(ErrInvalid, what, "its id is %d, the next one is %d", spec.ID, len(s.tenants))
	}
	t := &Tenant{Spec: spec}
	if p := s.Tenant(spec.Parent); p != nil {
		if t.Depth = p.Depth + 1; t.Depth >= MaxTenantDepth {
			return refuse(ErrInvalid, what, "the tree is deeper than %d", MaxTenantDepth)
		}
	}
	s.tenants = append(s.tenants, t)
	s.countCaps(&spec, 1)
	s.tenantName[spec.Name] = spec.ID
	s.readyTenant.grow(int32(len(s.tenants)))
	s.addChild(spec.Parent, spec.ID)
	s.countChange()
	return nil
}

func (s *State) replaceTenant(t *Tenant, spec TenantSpec, what string) error {
	for up, n := spec.Parent, 0; up != NoTenant; up, n = s.tenants[up].Spec.Parent, n+1 {
		if up == spec.ID || n > len(s.tenants) {
			return refuse(ErrInvalid, what, "parent %d is below it: the tree would be a cycle", spec.Parent)
		}
	}
	depth := int32(0)
	if p := s.Tenant(spec.Parent); p != nil {
		depth = p.Depth + 1
	}
	if depth+s.height(spec.ID) > MaxTenantDepth {
		return refuse(ErrInvalid, what, "the tree would be deeper than %d", MaxTenantDepth)
	}
	used, running := t.Used, t.Running
	s.chargeUp(t.Spec.Parent, Resources{}.Sub(used), -running)
	s.removeChild(t.Spec.Parent, spec.ID)
	delete(s.tenantName, t.Spec.Name)
	s.countCaps(&t.Spec, -1)
	s.countCaps(&spec, 1)
	t.Spec = spec
	s.tenantName[spec.Name] = spec.ID
	s.addChild(spec.Parent, spec.ID)
	s.chargeUp(spec.Parent, used, running)
	s.setDepth(spec.ID, depth)
	s.countChange()
	return nil
}

func (s *State) countCaps(spec *TenantSpec, sign int) {
	if spec.Caps != (Caps{}) {
		s.capped += sign
	}
}

// height returns the number of levels of the tenant's subtree.
func (s *State) height(id TenantID) int32 {
	h := int32(0)
	for _, c := range s.tenants[id].Children {
		h = max(h, s.height(c))
	}
	return h + 1
}

func (s *State) setDepth(id TenantID, depth int32) {
	s.tenants[id].Depth = depth
	for _, c := range s.tenants[id].Children {
		s.setDepth(c, depth+1)
	}
}

// addChild inserts a tenant into its parent's children, by name.
func (s *State) addChild(parent, child TenantID) {
	if parent == NoTenant {
		return
	}
	p := s.tenants[parent]
	name := s.tenants[child].Spec.Name
	i, _ := slices.BinarySearchFunc(p.Children, name, func(c TenantID, n string) int {
		switch other := s.tenants[c].Spec.Name; {
		case other < n:
			return -1
		case other > n:
			return 1
		}
		return 0
	})
	p.Children = slices.Insert(p.Children, i, child)
}

func (s *State) removeChild(parent, child TenantID) {
	if parent == NoTenant {
		return
	}
	p := s.tenants[parent]
	if i := slices.Index(p.Children, child); i >= 0 {
		p.Children = slices.Delete(p.Children, i, i+1)
	}
}

// chargeUp adds to the use of a tenant and all its ancestors.
func (s *State) chargeUp(t TenantID, d Resources, running int32) {
	for n := 0; t != NoTenant && n <= MaxTenantDepth; n++ {
		tn := s.tenants[t]
		tn.Used = tn.Used.Add(d)
		tn.Running += running
		t = tn.Spec.Parent
	}
}
