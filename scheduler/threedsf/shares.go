package threedsf

import (
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/drf"
)

// shares keeps a drf.Tree synchronised with the tenants of a State. The tree breaks ties by id, so
// siblings are added in order of name.
type shares struct {
	tree       *drf.Tree
	level      drf.Level
	resources  int
	total      scheduler.Resources
	knownSpecs []scheduler.TenantSpec // as in the tree
	charged    []scheduler.Resources  // each tenant's own usage, as in the tree
	treeID     []scheduler.TenantID   // by tenant
	tenantOf   []scheduler.TenantID   // by tree id

	past     []int64          // each tenant's recent use, as in the tree
	recent   []taskUse        // ring of the last pastTasks tasks that ended
	oldest   int              // index in recent
	pastOf   *scheduler.State // State whose history was read, up to pastRead tasks
	pastRead uint64
}

// pastTasks is how many of the last ended tasks count as a tenant's recent use.
const pastTasks = 64

// taskUse is what an ended task adds to its tenant's recent use.
type taskUse struct {
	tenant scheduler.TenantID // NoTenant for an unknown tenant
	use    int64
}

// sync synchronises the tree. O(tenants + changes x depth x log siblings).
func (f *shares) sync(s *scheduler.State, level drf.Level, resources int) {
	f.level, f.resources = level, resources
	if !f.isCurrent(s) {
		f.build(s)
	}
	for _, t := range s.Tenants() {
		id := t.Spec.ID
		if t.Own != f.charged[id] {
			f.charge(id, t.Own.Sub(f.charged[id]))
		}
	}
	f.syncPast(s)
}

// syncPast sets the tenants' recent use in the tree, which breaks ties: the sum of run time x
// dominant share of the last ended tasks. O(tasks that ended since the last call, at most
// pastTasks); O(tenants) for another State or tree.
func (f *shares) syncPast(s *scheduler.State) {
	h := s.History()
	ended := h.TaskCount() - f.pastRead
	reread := f.pastOf != s || ended > pastTasks || len(f.past) != len(f.charged)
	if reread {
		ended = pastTasks
		f.past = slices.Grow(f.past[:0], len(f.charged))[:len(f.charged)]
		clear(f.past)
		f.recent, f.oldest = slices.Repeat([]taskUse{{scheduler.NoTenant, 0}}, pastTasks), 0
	}
	f.pastOf, f.pastRead = s, h.TaskCount()
	h.RecentTasks(int(ended), func(t *scheduler.FinishedTask) bool {
		last := taskUse{scheduler.NoTenant, 0}
		if int(t.Tenant) < len(f.past) {
			last = taskUse{t.Tenant, 1 + int64(f.countedResources(t.Demand).DominantShare(f.total)*float64(t.RunTime))}
		}
		first := f.recent[f.oldest]
		f.recent[f.oldest] = last
		f.oldest = (f.oldest + 1) % pastTasks
		for _, u := range [...]taskUse{{last.tenant, last.use}, {first.tenant, -first.use}} {
			if u.tenant == scheduler.NoTenant {
				continue
			}
			if f.past[u.tenant] += u.use; !reread {
				f.tree.SetPast(f.treeID[u.tenant], f.past[u.tenant])
			}
		}
		return true
	})
	if reread {
		for t, used := range f.past {
			f.tree.SetPast(f.treeID[t], used)
		}
	}
}

// isCurrent reports whether the tree has the State's tenants and total.
func (f *shares) isCurrent(s *scheduler.State) bool {
	if f.tree == nil || f.total != f.countedResources(s.Cluster().Total()) || len(f.knownSpecs) != len(s.Tenants()) {
		return false
	}
	for i, t := range s.Tenants() {
		if k := &f.knownSpecs[i]; t.Spec.Parent != k.Parent || t.Spec.Weight != k.Weight || t.Spec.Name != k.Name {
			return false
		}
	}
	return true
}

// countedResources clears the resources that do not count in shares.
func (f *shares) countedResources(r scheduler.Resources) scheduler.Resources {
	if f.resources == 2 {
		r[scheduler.IO] = 0
	}
	return r
}

func (f *shares) build(s *scheduler.State) {
	n, total := len(s.Tenants()), f.countedResources(s.Cluster().Total())
	*f = shares{level: f.level, resources: f.resources, total: total, charged: make([]scheduler.Resources, n), treeID: make([]scheduler.TenantID, n)}
	f.tree = drf.New(total.Min(scheduler.Resources{scheduler.MaxAmount, scheduler.MaxAmount, scheduler.MaxAmount}), f.level)
	var roots []*scheduler.Tenant
	for _, t := range s.Tenants() {
		f.knownSpecs = append(f.knownSpecs, t.Spec)
		if t.Spec.Parent == scheduler.NoTenant {
			roots = append(roots, t)
		}
	}
	slices.SortFunc(roots, func(a, b *scheduler.Tenant) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
	for _, t := range roots {
		f.add(s, t.Spec.ID, scheduler.NoTenant)
	}
}

// add adds a tenant and its descendants. The State bounds the depth.
func (f *shares) add(s *scheduler.State, id, parent scheduler.TenantID) {
	t := s.Tenant(id)
	at := f.tree.Add(parent, t.Spec.Weight)
	f.treeID[id] = at
	f.tenantOf = append(f.tenantOf, id)
	for _, c := range t.Children {
		f.add(s, c, at)
	}
}

// charge adds to a tenant's use in the tree.
func (f *shares) charge(t scheduler.TenantID, d scheduler.Resources) {
	f.charged[t] = f.charged[t].Add(d)
	f.tree.Charge(f.treeID[t], f.countedResources(d))
}

// setNext sets the tenant's next task, nil for none.
func (f *shares) setNext(t scheduler.TenantID, g *scheduler.Stage) {
	if g == nil {
		f.tree.ClearNext(f.treeID[t])
		return
	}
	f.tree.SetNext(f.treeID[t], f.countedResources(g.Spec.Demand))
}

// nextTenant returns the tenant with the smallest share.
func (f *shares) nextTenant() (scheduler.TenantID, bool) {
	id, _, ok := f.tree.Next()
	if !ok {
		return scheduler.NoTenant, false
	}
	return f.tenantOf[id], true
}

// streak returns how many tasks of demand d in a row the next tenant would place before another is next, at most limit.
func (f *shares) streak(t scheduler.TenantID, d scheduler.Resources, limit int32) int32 {
	return int32(f.tree.Streak(f.treeID[t], f.countedResources(d), int(limit)))
}

// isAlone reports whether a tenant stays next however much is charged to it.
func (f *shares) isAlone(t scheduler.TenantID) bool { return f.tree.IsAlone(f.treeID[t]) }
