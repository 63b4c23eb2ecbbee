package scheduler

// A State is asked and changed through small types, each for one thing that it owns. They cost
// nothing: those made of a pointer to the State are values that the compiler keeps in a register.

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

// Events returns what updates the State by what happened. It panics during a try, in which nothing may happen.
func (s *State) Events() Events {
	if s.undo.depth > 0 {
		panic("scheduler: an event during a try: roll back first")
	}
	return Events{s}
}

// Journal returns what starts and undoes tries.
func (s *State) Journal() Journal { return Journal{s} }

// Cluster returns the nodes and the index of what is free on them now.
func (s *State) Cluster() *Cluster { return &s.cluster }

// TenantTree returns the tenants, with their caps.
func (s *State) TenantTree() *TenantTree { return &s.tree }

// Queue returns the work that is ready to start.
func (s *State) Queue() Queue { return Queue{s} }

// Attempts returns the live attempts.
func (s *State) Attempts() Attempts { return Attempts{s} }

// Reservations returns the reservations.
func (s *State) Reservations() Reservations { return Reservations{s} }

// PolicyStates returns what policies remember.
func (s *State) PolicyStates() PolicyStates { return PolicyStates{s} }

// ChangeLog returns which jobs and projects changed, in order.
func (s *State) ChangeLog() *ChangeLog { return &s.changeLog }

func (s *State) applier() applier { return applier{s} }
func (s *State) links() links     { return links{s} }
