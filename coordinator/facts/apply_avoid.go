package facts

import (
	"fmt"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A job avoids a node on which avoidTasks different tasks of one of its stages
// failed and none succeeded, while as many succeeded on other nodes: something
// there is wrong for this job, whatever other jobs do there. It returns when a
// task of that stage succeeds there after all, when the node was lost and is
// back, and when an operator ends its drain.

// Limits of avoiding nodes.
const (
	avoidTasks      = 3
	maxNodeFailures = 64 // records of a job; a job avoids at most half of the nodes, too
)

// NodeFailures says that tasks of a stage failed on a node, where none of the
// stage succeeded since. It is immutable.
type NodeFailures struct {
	Node      int32   `json:"node"`
	Stage     int32   `json:"stage"`
	Tasks     []int32 `json:"tasks"`               // different ones, at most avoidTasks
	Elsewhere int32   `json:"elsewhere,omitempty"` // tasks that succeeded on other nodes since, at most avoidTasks
	Avoided   bool    `json:"avoided,omitempty"`
}

// AvoidedNodes returns the nodes that the job avoids, in order.
func (j *Job) AvoidedNodes() []int32 {
	var ids []int32
	for i := range j.NodeFailures {
		if r := &j.NodeFailures[i]; r.Avoided {
			ids = append(ids, r.Node)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// recordNodeFailure records that an attempt failed on its node, whether the task or the node was at
// fault. The job came from writableJob. O(records), and O(nodes) if the job avoids the node from
// now on.
func (en attemptEntries) recordNodeFailure(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	n := en.f.Node(a.Node)
	switch c := a.Cause(); {
	case n == nil || a.Placed < n.SchedulableSince:
		return
	case c == droverv1.Cause_CAUSE_SPEC && !a.Seen().GetElsewhere(), c == droverv1.Cause_CAUSE_DATA, c == droverv1.Cause_CAUSE_REBOOT, c == droverv1.Cause_CAUSE_INPUT && len(a.Seen().GetLostOutputs()) > 0:
		return // no other node could do better, or others were to blame
	}
	list := slices.Clone(j.NodeFailures)
	i := slices.IndexFunc(list, func(r NodeFailures) bool { return r.Node == a.Node && r.Stage == k.Stage })
	if i < 0 {
		if len(list) >= maxNodeFailures {
			old := slices.IndexFunc(list, func(r NodeFailures) bool { return !r.Avoided })
			if old < 0 {
				return
			}
			list = slices.Delete(list, old, old+1)
		}
		i, list = len(list), append(list, NodeFailures{Node: a.Node, Stage: k.Stage})
	}
	r := &list[i]
	if len(r.Tasks) < avoidTasks && !slices.Contains(r.Tasks, k.Task) {
		r.Tasks = append(slices.Clone(r.Tasks), k.Task)
	}
	j.NodeFailures = list
	en.avoidIfDue(e, j, i)
}

// recordNodeSuccess records that a task of a job with records succeeded. The job
// came from writableJob.
func (en attemptEntries) recordNodeSuccess(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	j.NodeFailures = slices.Clone(j.NodeFailures)
	for i := 0; i < len(j.NodeFailures); i++ {
		switch r := &j.NodeFailures[i]; {
		case r.Stage != k.Stage:
		case r.Node == a.Node:
			back := r.Avoided
			j.NodeFailures = slices.Delete(j.NodeFailures, i, i+1)
			i--
			if back {
				nodesOf(en.f).endAvoidance(e, j, a.Node, "a task of it succeeded here after all")
			}
		case r.Elsewhere < avoidTasks:
			r.Elsewhere++
			en.avoidIfDue(e, j, i)
		}
	}
}

// avoidIfDue lets a job avoid the node of its i-th record once there is enough
// evidence, unless it would avoid more than half of the nodes that are up.
func (en attemptEntries) avoidIfDue(e *droverv1.Entry, j *Job, i int) {
	r := &j.NodeFailures[i]
	if r.Avoided || len(r.Tasks) < avoidTasks || r.Elsewhere < avoidTasks {
		return
	}
	avoided, up := j.AvoidedNodes(), 0
	for _, n := range en.f.nodes {
		if n.Up {
			up++
		}
	}
	if !slices.Contains(avoided, r.Node) && len(avoided) >= up/2 {
		return
	}
	r.Avoided = true
	c := *en.f.Node(r.Node)
	c.AvoidedBy = append(slices.DeleteFunc(slices.Clone(c.AvoidedBy), func(id uint64) bool {
		o := en.f.jobs[id]
		return id == j.ID || o == nil || o.HasEnded()
	}), j.ID)
	en.f.nodes[r.Node-1] = &c
	en.f.EventLog().add(e, "job.avoids_node", &Event{Job: j.Name, JobID: j.ID, Node: c.Info.GetName(),
		Text: fmt.Sprintf("%d tasks of stage %s failed here and none succeeded, while %d succeeded elsewhere: its tasks go to other nodes", len(r.Tasks), j.Spec.Stages[r.Stage].Name, r.Elsewhere)})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// endAvoidance records that a job no longer avoids a node, unless another record of it still does.
func (en nodeEntries) endAvoidance(e *droverv1.Entry, j *Job, node int32, why string) {
	if slices.Contains(j.AvoidedNodes(), node) {
		return
	}
	c := *en.f.Node(node)
	c.AvoidedBy = slices.DeleteFunc(slices.Clone(c.AvoidedBy), func(id uint64) bool { return id == j.ID })
	en.f.nodes[node-1] = &c
	en.f.EventLog().add(e, "job.returns_to_node", &Event{Job: j.Name, JobID: j.ID, Node: c.Info.GetName(), Text: why})
	writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
}

// endAvoidances lets all jobs return to a node. O(jobs that avoid it).
func (en nodeEntries) endAvoidances(e *droverv1.Entry, node int32, why string) {
	for _, id := range en.f.Node(node).AvoidedBy {
		j := en.f.jobs[id]
		if j == nil || j.HasEnded() {
			continue
		}
		j = writerOf(en.f).writableJob(j)
		j.NodeFailures = slices.DeleteFunc(slices.Clone(j.NodeFailures), func(r NodeFailures) bool { return r.Node == node })
		en.endAvoidance(e, j, node, why)
	}
}
