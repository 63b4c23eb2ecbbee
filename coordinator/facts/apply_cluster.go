package facts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func (f *Facts) applyTenants(e *droverv1.Entry, tf *droverv1.TenantsFact, r *Result) {
	if err := f.CheckTenants(tf.GetTenants()); err != nil {
		r.Err = err
		return
	}
	for _, t := range tf.GetTenants() {
		if old := f.tenantName[t.GetName()]; old != nil && proto.Equal(old.Spec, t) {
			continue
		}
		f.putTenant(t)
		r.Changed++
		f.event(e, "tenant.applied", &Event{Text: "tenant " + t.GetName()})
	}
}

func (f *Facts) putTenant(t *droverv1.Tenant) {
	n := &Tenant{ID: int32(len(f.tenants)), Spec: proto.CloneOf(t)}
	if old := f.tenantName[t.GetName()]; old != nil {
		n.ID, n.Preempted = old.ID, old.Preempted
		f.tenants[n.ID] = n
	} else {
		f.tenants = append(f.tenants, n)
	}
	f.tenantName[t.GetName()] = n
	f.record(Change{Kind: ChangeTenant, Node: n.ID})
}

// maxTenantDepth bounds the tree.
const maxTenantDepth = 32

// CheckTenants tells what is wrong with tenants about to be applied: a name or
// weight without meaning, an unknown parent (it may stand earlier in the
// list), a circle.
func (f *Facts) CheckTenants(list []*droverv1.Tenant) error {
	parent, added := map[string]string{}, 0
	for _, t := range f.tenants {
		parent[t.Spec.GetName()] = t.Spec.GetParent()
	}
	for _, t := range list {
		name := t.GetName()
		if name == "" || len(name) > 128 {
			return fault.New(fault.Invalid, "a tenant's name has 1 to 128 bytes, not %d", len(name))
		}
		if w := t.GetWeight(); !(w > 0) || math.IsInf(w, 0) || w > 1e9 {
			return fault.New(fault.Invalid, "tenant %q: weight %v; give a number above 0, such as 1", name, w)
		}
		if _, ok := parent[t.GetParent()]; t.GetParent() != "" && !ok {
			return fault.New(fault.Invalid, "tenant %q: parent %q is unknown; list it first", name, t.GetParent())
		}
		if _, known := parent[name]; !known {
			added++
		}
		parent[name] = t.GetParent()
		depth := 0
		for up := name; up != ""; up = parent[up] {
			if depth++; depth > maxTenantDepth {
				return fault.New(fault.Invalid, "tenant %q: its parents form a circle or more than %d levels", name, maxTenantDepth)
			}
		}
	}
	if len(f.tenants)+added > MaxTenants {
		return fault.New(fault.Exhausted, "a cluster has at most %d tenants", MaxTenants)
	}
	return nil
}

// SameNode tells whether a registration changes nothing, so that no entry is
// needed for it.
func (f *Facts) SameNode(info *droverv1.NodeInfo, epoch uint64) (*Node, bool) {
	n := f.NodeByName(info.GetName())
	return n, n != nil && n.Up && n.Epoch == epoch && proto.Equal(n.Info, info)
}

// applyNode registers a node. One that was lost, or that does not know its
// present epoch, gets a new epoch: what ran in an old one is lost.
func (f *Facts) applyNode(e *droverv1.Entry, nf *droverv1.NodeFact, r *Result) {
	info := nf.GetInfo()
	if info.GetName() == "" || len(info.GetName()) > 255 {
		r.Err = fault.New(fault.Invalid, "a node's name has 1 to 255 bytes")
		return
	}
	old := f.NodeByName(info.GetName())
	n := &Node{Epoch: 1, Up: true, Info: proto.CloneOf(info)}
	if old == nil {
		if len(f.nodes) >= MaxNodes {
			r.Err = fault.New(fault.Exhausted, "a cluster has at most %d nodes", MaxNodes)
			return
		}
		n.ID = int32(len(f.nodes)) + 1
		f.nodes = append(f.nodes, n)
		f.nodeName[info.GetName()] = n.ID
		f.event(e, "node.registered", &Event{Node: info.GetName(), Text: AmountsOf(info.GetAllocatable()).String()})
	} else {
		if old.Up && old.Epoch != nf.GetEpoch() {
			f.loseNode(e, old, "it came back without knowing its epoch")
			old = f.Node(old.ID)
		}
		c := *old
		c.Info, c.Up = n.Info, true
		if !old.Up {
			c.Epoch++
			c.Infra, c.Used, c.Attempts = nil, Amounts{}, 0
			if c.Why != "" && !c.Draining {
				c.Why = ""
			}
			f.event(e, "node.returned", &Event{Node: info.GetName(), Text: fmt.Sprintf("epoch %d", c.Epoch)})
			if c.Back > 0 { // it may have been mended meanwhile
				f.try(e, &c)
				c = *f.Node(c.ID)
				c.Why = ""
			}
		}
		n = &c
		f.nodes[n.ID-1] = n
	}
	r.Node, r.Epoch, r.Changed = n.ID, n.Epoch, 1
	f.record(Change{Kind: ChangeNode, Node: n.ID})
}

// String gives the amounts for people.
func (a Amounts) String() string {
	return fmt.Sprintf("cpu %s, memory %s, I/O %s", jobspec.FormatCPU(a.CPU), jobspec.FormatSize(a.Memory), jobspec.FormatRate(a.IO))
}

func (f *Facts) applyNodeLost(e *droverv1.Entry, nf *droverv1.NodeLostFact, r *Result) {
	n := f.Node(nf.GetNode())
	if n == nil || !n.Up || n.Epoch != nf.GetEpoch() {
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is not up in that epoch"})
		return
	}
	f.loseNode(e, n, nf.GetWhy())
	r.Changed = 1
}

// loseNode takes a node down: its attempts are lost, and so are the map
// outputs on it that are still needed. In order of the attempts' keys, so that
// events and journal are the same everywhere.
func (f *Facts) loseNode(e *droverv1.Entry, n *Node, why string) {
	f.event(e, "node.lost", &Event{Node: n.Info.GetName(), Text: why})
	down := *n
	down.Up, down.Why = false, clip(why, 256)
	f.nodes[n.ID-1] = &down
	f.record(Change{Kind: ChangeNodeLost, Node: n.ID})
	keys := slices.SortedFunc(maps.Keys(f.onNode[n.ID]), CompareKeys)
	delete(f.onNode, n.ID)
	for _, k := range keys {
		a := f.Attempt(k)
		if a == nil || a.Node != n.ID {
			continue // gone, or it moved: if its image went with this node, its new one says so
		}
		if a.State.Holds() {
			f.endAttempt(e, k, a, AttemptLost, nil)
		} else {
			f.loseOutput(e, k, a, "node "+n.Info.GetName()+" was lost")
		}
	}
}

// CompareKeys orders attempts by job, stage, task, attempt.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Attempt, b.Attempt))
}

func (f *Facts) applyBlob(b *droverv1.BlobFact, r *Result) {
	d := b.GetDigest()
	old := f.blobs[d]
	switch {
	case b.GetRemoved():
		if old == nil || old.Refs > 0 {
			r.Dropped = append(r.Dropped, Drop{Reason: "the blob is in use or gone"})
			return
		}
		delete(f.blobs, d)
		f.record(Change{Kind: ChangeBlobGone, Digest: d})
	case old != nil:
		return
	case d == "" || len(d) > 128 || b.GetSize() < 0:
		r.Err = fault.New(fault.Invalid, "blob %q of %d bytes", clip(d, 128), b.GetSize())
		return
	case len(f.blobs) >= MaxBlobs:
		r.Err = fault.New(fault.Exhausted, "the store has %d files, its limit; stop or forget jobs", MaxBlobs)
		return
	default:
		f.blobs[d] = &Blob{Digest: d, Size: b.GetSize(), Added: f.at}
	}
	r.Changed = 1
}
