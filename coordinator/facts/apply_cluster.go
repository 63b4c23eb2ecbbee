package facts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func (en clusterEntries) applyTenants(e *droverv1.Entry, tf *droverv1.TenantsFact, r *Result) {
	if err := en.f.Checks().checkTenants(tf.GetTenants()); err != nil {
		r.Err = err
		return
	}
	for _, t := range tf.GetTenants() {
		if old := en.f.Tenant(t.GetName()); old != nil && proto.Equal(old.Spec, t) {
			continue
		}
		en.putTenant(t)
		r.Changed++
		en.f.EventLog().add(e, "tenant.applied", &Event{Text: "tenant " + t.GetName()})
	}
}

func (en clusterEntries) putTenant(t *droverv1.Tenant) {
	n := &Tenant{ID: int32(len(en.f.tenants)), Spec: proto.CloneOf(t)}
	if old := en.f.tenantName[t.GetName()]; old != nil {
		n.ID, n.Preempted = old.ID, old.Preempted
		en.f.tenants[n.ID] = n
	} else {
		en.f.tenants = append(en.f.tenants, n)
	}
	en.f.tenantName[t.GetName()] = n
	writerOf(en.f).recordChange(Change{Kind: ChangeTenant, Node: n.ID})
}

// maxTenantDepth bounds the depth of the tenant tree.
const maxTenantDepth = 32

// checkTenants returns an error if the tenants to be applied are invalid: a bad
// name or weight, an unknown parent (it may come earlier in the list), or a
// cycle.
func (c Checks) checkTenants(list []*droverv1.Tenant) error {
	parent, added := map[string]string{}, 0
	for _, t := range c.f.tenants {
		if !t.Deleted {
			parent[t.Spec.GetName()] = t.Spec.GetParent()
		}
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
		if _, known := parent[name]; !known && c.f.tenantName[name] == nil {
			added++
		}
		parent[name] = t.GetParent()
		if isTooDeep(parent, name) {
			return fault.New(fault.Invalid, "tenant %q: its parents form a circle or more than %d levels", name, maxTenantDepth)
		}
	}
	if len(c.f.tenants)+added > maxTenants {
		return fault.New(fault.Exhausted, "a cluster has at most %d tenants, deleted ones included", maxTenants)
	}
	return nil
}

// isTooDeep reports whether a tenant is deeper than maxTenantDepth, as one is whose parents form a
// circle.
func isTooDeep(parent map[string]string, name string) bool {
	depth := 0
	for up := name; up != ""; up = parent[up] {
		if depth++; depth > maxTenantDepth {
			return true
		}
	}
	return false
}

// CheckTreeDepth returns an error if applying tenants would move the tenants below them deeper than
// the tree may be. It is only called before the entry is proposed, since what older logs accepted
// stays, and leaves to Apply what Apply refuses. O(tenants times depth).
func (c Checks) CheckTreeDepth(list []*droverv1.Tenant) error {
	if c.checkTenants(list) != nil {
		return nil
	}
	parent := map[string]string{}
	for _, t := range c.f.tenants {
		if !t.Deleted {
			parent[t.Spec.GetName()] = t.Spec.GetParent()
		}
	}
	for _, t := range list {
		parent[t.GetName()] = t.GetParent()
	}
	for _, name := range slices.Sorted(maps.Keys(parent)) {
		if isTooDeep(parent, name) {
			return fault.New(fault.Invalid, "tenant %q would be more than %d levels deep: move fewer tenants above it", name, maxTenantDepth)
		}
	}
	return nil
}

// RegistrationUnchanged reports whether a registration changes nothing but its
// token, so that no entry is needed.
func (c Checks) RegistrationUnchanged(info *droverv1.NodeInfo, epoch uint64) bool {
	n := c.f.NodeByName(info.GetName())
	if n == nil || !n.Up || n.Epoch != epoch {
		return false
	}
	info = proto.CloneOf(info)
	info.Registration = n.Info.GetRegistration()
	return proto.Equal(n.Info, info)
}

// applyNode registers a node. A node that was lost, or that does not know its
// current epoch, gets a new epoch: the attempts of the old one are lost.
func (en nodeEntries) applyNode(e *droverv1.Entry, nf *droverv1.NodeFact, r *Result) {
	info := nf.GetInfo()
	if info.GetName() == "" || len(info.GetName()) > 255 {
		r.Err = fault.New(fault.Invalid, "a node's name has 1 to 255 bytes, not %d: give it another with -name", len(info.GetName()))
		return
	}
	old := en.f.NodeByName(info.GetName())
	n := &Node{Epoch: 1, Up: true, Info: proto.CloneOf(info)}
	if old == nil {
		if len(en.f.nodes) >= maxNodes {
			r.Err = fault.New(fault.Exhausted, "a cluster has at most %d nodes, those that are gone included: give the machine the name of one that is gone", maxNodes)
			return
		}
		n.ID = int32(len(en.f.nodes)) + 1
		en.f.nodes = append(en.f.nodes, n)
		en.f.nodeName[info.GetName()] = n.ID
		en.f.EventLog().add(e, "node.registered", &Event{Node: info.GetName(), Text: AmountsOf(info.GetAllocatable()).String()})
	} else {
		if old.Up && old.Epoch != nf.GetEpoch() {
			en.loseNode(e, old, "it came back without knowing its epoch")
			old = en.f.Node(old.ID)
		}
		if k, ok := en.usesMissingDisk(old, info); old.Up && ok {
			en.loseNode(e, old, fmt.Sprintf("it came back without the disk of attempt %d.%d.%d.%d", k.Job, k.Stage, k.Task, k.Attempt))
			old = en.f.Node(old.ID)
		}
		c := *old
		c.Info, c.Up = n.Info, true
		if !old.Up {
			// After a restore the node may have had later epochs than the facts know.
			c.Epoch = max(old.Epoch, min(nf.GetEpoch(), math.MaxUint64>>1)) + 1
			c.InfraFailures, c.Used, c.Attempts = nil, Amounts{}, 0
			if c.Reason != "" && !c.Draining {
				c.Reason = ""
			}
			en.f.EventLog().add(e, "node.returned", &Event{Node: info.GetName(), Text: fmt.Sprintf("epoch %d", c.Epoch)})
			if c.RetryAt > 0 { // it may have been repaired while it was down
				en.startProbation(e, &c)
				c = *en.f.Node(c.ID)
				c.Reason = ""
			}
		}
		n = &c
		en.f.nodes[n.ID-1] = n
		if !old.Up {
			en.endAvoidances(e, n.ID, "the node is back")
			n = en.f.Node(n.ID)
		}
	}
	r.Node, r.Epoch, r.Changed = n.ID, n.Epoch, 1
	writerOf(en.f).recordChange(Change{Kind: ChangeNode, Node: n.ID})
}

// usesMissingDisk returns the first attempt on a node whose disk is not among those
// that the node now has. O(attempts on the node).
func (en nodeEntries) usesMissingDisk(n *Node, info *droverv1.NodeInfo) (Key, bool) {
	for _, k := range slices.SortedFunc(maps.Keys(en.f.onNode[n.ID]), CompareKeys) {
		if a := en.f.Attempt(k); a != nil && a.Node == n.ID && a.State.IsActive() && int(a.Disk) >= len(info.GetDisks()) {
			return k, true
		}
	}
	return Key{}, false
}

// String formats the amounts for users.
func (a Amounts) String() string {
	return fmt.Sprintf("cpu %s, memory %s, I/O %s", jobspec.FormatCPU(a.CPU), jobspec.FormatSize(a.Memory), jobspec.FormatRate(a.IO))
}

func (en nodeEntries) applyNodeLost(e *droverv1.Entry, nf *droverv1.NodeLostFact, r *Result) {
	n := en.f.Node(nf.GetNode())
	if n == nil || !n.Up || n.Epoch != nf.GetEpoch() {
		r.Dropped = append(r.Dropped, Drop{Reason: "the node is not up in that epoch"})
		return
	}
	en.loseNode(e, n, nf.GetReason())
	r.Changed = 1
}

// loseNode marks a node as down: its active attempts are lost, and so are the
// map outputs on it that are still needed. It proceeds in key order, so that
// events and journal are the same on every server.
func (en nodeEntries) loseNode(e *droverv1.Entry, n *Node, why string) {
	en.f.EventLog().add(e, "node.lost", &Event{Node: n.Info.GetName(), Text: why})
	down := *n
	down.Up, down.Reason = false, clip(why, 256)
	en.f.nodes[n.ID-1] = &down
	writerOf(en.f).recordChange(Change{Kind: ChangeNodeLost, Node: n.ID})
	keys := slices.SortedFunc(maps.Keys(en.f.onNode[n.ID]), CompareKeys)
	delete(en.f.onNode, n.ID)
	for _, k := range keys {
		a := en.f.Attempt(k)
		if a == nil || a.Node != n.ID {
			continue // gone or migrated; if its image was on this node, the new node reports the failure
		}
		if a.State.IsActive() {
			attemptsOf(en.f).endAttempt(e, k, a, AttemptLost, nil)
		} else {
			attemptsOf(en.f).loseOutput(e, k, a, "node "+n.Info.GetName()+" was lost")
		}
	}
}

// CompareKeys orders attempts by job, stage, task, attempt.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Attempt, b.Attempt))
}

func (en clusterEntries) applyBlob(e *droverv1.Entry, b *droverv1.BlobFact, r *Result) {
	d := b.GetDigest()
	old := en.f.blobs[d]
	switch {
	case b.GetDamaged():
		en.noteDamagedFile(e, d, b.GetReason())
	case b.GetRemoved():
		if old == nil || old.Refs > 0 {
			r.Dropped = append(r.Dropped, Drop{Reason: "the blob is in use or gone"})
			return
		}
		delete(en.f.blobs, d)
		writerOf(en.f).recordChange(Change{Kind: ChangeBlobGone, Digest: d})
	case old != nil:
		return
	case d == "" || len(d) > 128 || b.GetSize() < 0:
		r.Err = fault.New(fault.Invalid, "blob %q of %d bytes: want a digest of at most 128 bytes, and a size from 0 on", clip(d, 128), b.GetSize())
		return
	case len(en.f.blobs) >= maxBlobs:
		r.Err = fault.New(fault.Exhausted, "the store has %d files, its limit: stop jobs that need many, or wait; a file goes an hour after its last job was forgotten, which is within a day of its end", maxBlobs)
		return
	default:
		en.f.blobs[d] = &Blob{Digest: d, Size: b.GetSize(), Added: en.f.now}
	}
	r.Changed = 1
}

// noteDamagedFile records that the store's copy of a file was damaged and moved
// aside, and which live jobs need it. The file stays a fact: it is complete again
// as soon as a client has uploaded it again.
func (en clusterEntries) noteDamagedFile(e *droverv1.Entry, digest, why string) {
	var jobs []string
	for _, id := range en.f.JobIDs() {
		if j := en.f.jobs[id]; !j.HasEnded() && slices.Contains(Digests(j.Spec), digest) {
			if jobs = append(jobs, j.Name); len(jobs) == 5 {
				break
			}
		}
	}
	text := clip(digest, 128) + ": " + clip(why, 256)
	if len(jobs) > 0 {
		text += "; needed by " + strings.Join(jobs, ", ")
	}
	en.f.EventLog().add(e, "file.damaged", &Event{Text: text})
}
