package scheduler

// A State is read and changed through small types, each for one part of it. They cost nothing: a
// value with only a pointer to the State stays in a register.

// Nodes returns all nodes by id. The slice belongs to State.
func (s *State) Nodes() []*Node { return s.cluster.nodes }

// Node returns a node, or nil.
func (s *State) Node(id NodeID) *Node {
	if id < 0 || int(id) >= len(s.cluster.nodes) {
		return nil
	}
	return s.cluster.nodes[id]
}

// Tenants returns all tenants by id. The slice belongs to State.
func (s *State) Tenants() []*Tenant { return s.tree.tenants }

// Tenant returns a tenant, or nil.
func (s *State) Tenant(id TenantID) *Tenant { return s.tree.tenant(id) }

// Events returns the type that updates the State with events. It panics during a try, in which no event may happen.
func (s *State) Events() Events {
	if s.undo.depth > 0 {
		panic("scheduler: an event during a try: roll back first")
	}
	return Events{s}
}

// Journal returns the type that starts and undoes tries.
func (s *State) Journal() Journal { return Journal{s} }

// Cluster returns the nodes and the index of their free capacity now.
func (s *State) Cluster() *Cluster { return &s.cluster }

// TenantTree returns the tenants, with their caps.
func (s *State) TenantTree() *TenantTree { return &s.tree }

// Queue returns the work that is ready to start.
func (s *State) Queue() Queue { return Queue{s} }

// Attempts returns the live attempts.
func (s *State) Attempts() Attempts { return Attempts{s} }

// Reservations returns the reservations.
func (s *State) Reservations() Reservations { return Reservations{s} }

// PolicyStates returns the policies' memory.
func (s *State) PolicyStates() PolicyStates { return PolicyStates{s} }

// ChangeLog returns the log of changed jobs and projects.
func (s *State) ChangeLog() *ChangeLog { return &s.changeLog }

func (s *State) applier() applier { return applier{s} }
func (s *State) links() links     { return links{s} }
