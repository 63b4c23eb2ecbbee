package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// maxRestoreNodes bounds the nodes on which the restore of one checkpoint is
// tried.
const maxRestoreNodes = 3

// CanRestore reports whether a checkpoint made on one node can be restored on another: same driver,
// kernel, criu and runc, no earlier format of dumps, and at least the same CPU flags. The
// coordinator's classes of nodes name all that it compares.
func CanRestore(from, to *droverv1.NodeInfo) bool {
	can := func(i *droverv1.NodeInfo) bool {
		return slices.Contains(i.GetLevels(), droverv1.Level_LEVEL_CHECKPOINTED)
	}
	if !can(from) || !can(to) || from.GetDriver() != to.GetDriver() {
		return false
	}
	for _, p := range []string{"kernel", "criu", "runc"} {
		if from.GetVersions()[p] != to.GetVersions()[p] {
			return false
		}
	}
	if dumpFormat(from) > dumpFormat(to) {
		return false
	}
	has := make(map[string]bool, len(to.GetCpuFlags()))
	for _, flag := range to.GetCpuFlags() {
		has[flag] = true
	}
	for _, flag := range from.GetCpuFlags() {
		if !has[flag] {
			return false
		}
	}
	return true
}

// dumpFormat returns the version of the dumps that a node writes; 0 if its release does not report
// the version.
func dumpFormat(i *droverv1.NodeInfo) int {
	n, _ := strconv.Atoi(i.GetVersions()["dump"])
	return n
}

// RestoreNode returns the schedulable node to which an attempt that is checkpointed may migrate now,
// nil if there is none. O(nodes).
func RestoreNode(f *Facts, k Key) *Node {
	a := f.Attempt(k)
	if a == nil || a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != 0 {
		return nil
	}
	return decisionsOf(f).findRestoreNode(k, a, (*Node).Schedulable)
}

// migrate resumes a checkpointed attempt on another node.
func (en decisionEntries) migrate(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k := KeyOf(act.GetKey())
	a, n := en.f.Attempt(k), en.f.Node(act.GetNode())
	switch {
	case a == nil:
		return "no such attempt"
	case act.GetKey().GetRun() != a.Run+1:
		return fmt.Sprintf("run %d, the next one is %d", act.GetKey().GetRun(), a.Run+1)
	case a.State != AttemptLive:
		return "the attempt is " + a.State.String()
	case a.Level != droverv1.Level_LEVEL_CHECKPOINTED || a.Target != 0:
		return "only a checkpointed task can migrate; it is " + LevelName(cmp.Or(a.Target, a.Level))
	case a.Suspension.Unknown:
		return unknownReason
	case n == nil || !n.TakesTasks(): // what Apply decides may not change; who chooses a node to propose asks Schedulable
		return "the node is not schedulable"
	case n.ID == a.Node:
		return "it is on that node already: resume it there"
	case act.GetDisk() < -1 || int(act.GetDisk()) >= len(n.Info.GetDisks()):
		return "the node has no such disk"
	case !CanRestore(en.f.Node(a.Node).Info, n.Info):
		return "the node cannot restore what node " + en.f.EventLog().nodeNameOf(a.Node) + " checkpoints: CPU flags, kernel, criu and runc must match, and its drover must not be older"
	case !en.f.jobs[k.Job].Demand(int(k.Stage)).fits(AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1)):
		return "the node has no free capacity"
	}
	c := *a
	c.Suspension.Reason, c.Suspension.Actor, c.Suspension.Preemptor, c.Suspension.Parked = clip(act.GetReason(), 256), clip(e.GetActor(), 128), act.GetPreemptorJob(), false
	c.Suspension.Drained = false
	en.moveAttempt(e, k, &c, n, act.GetDisk())
	return ""
}

// moveAttempt assigns a, whose checkpoint some node holds, to another node. a is a copy of the
// current attempt. It is the only place that raises the run. Its callers know that no container of
// the old run is left: migrate because the attempt is checkpointed, handleResumeFailure because the
// node reported that the restore failed.
func (en decisionEntries) moveAttempt(e *droverv1.Entry, k Key, a *Attempt, to *Node, disk int32) {
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	from := en.f.EventLog().nodeNameOf(a.Node)
	nodesOf(en.f).charge(a.Node, a.Occupied, -1)
	delete(en.f.onNode[a.Node], k)
	if a.Suspension.ImageNode == 0 {
		a.Suspension.ImageNode, a.Suspension.ImageEpoch, a.Suspension.ImageRun, a.Suspension.ImageDisk = a.Node, a.Epoch, a.Run, a.Disk
	}
	old := Change{Kind: ChangeLevel, Key: k, Node: to.ID, Nodes: []int32{a.Node}, Run: a.Run}
	a.Node, a.Epoch, a.Disk, a.Run = to.ID, to.Epoch, disk, a.Run+1
	a.Target, a.Suspension.RequestedAt, a.Suspension.RefusedLevels = droverv1.Level_LEVEL_RUNNING, en.f.now, 0
	a.Suspension.clearTransient()
	a.Suspension.RefusalStreak = 0
	a.Occupied = j.Demand(int(k.Stage))
	nodesOf(en.f).charge(a.Node, a.Occupied, +1)
	writerOf(en.f).setTask(j, k.Stage, k.Task, j.Stages[k.Stage].Task(k.Task).withAttempt(a))
	if en.f.onNode[to.ID] == nil {
		en.f.onNode[to.ID] = map[Key]struct{}{}
	}
	en.f.onNode[to.ID][k] = struct{}{}
	en.f.EventLog().add(e, "task.migrating", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: to.Info.GetName(), Text: "from " + from + en.f.EventLog().preemptionText(j, a)})
	writerOf(en.f).recordChange(old)
}

// handleResumeFailure handles a node's failure to restore an attempt from its
// checkpoint: another node tries, or else the attempt fails, its work is lost
// and the task is retried.
func (en levelEntries) handleResumeFailure(e *droverv1.Entry, k Key, a *Attempt, seen *droverv1.SeenAttempt) {
	j := en.f.jobs[k.Job]
	detail := cmp.Or(seen.GetLevelNote(), "the node gave no reason")
	en.f.EventLog().add(e, "task.restore_failed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: en.f.EventLog().nodeNameOf(a.Node), Text: detail})
	if a.Level == droverv1.Level_LEVEL_CHECKPOINTED && len(a.Suspension.RestoreFailedOn) < maxRestoreNodes {
		var n *Node
		if e.GetStepRules() >= probationRules {
			n = decisionsOf(en.f).findRestoreNode(k, a, (*Node).Schedulable)
		}
		if n == nil { // its work is lost otherwise
			n = decisionsOf(en.f).findRestoreNode(k, a, (*Node).TakesTasks)
		}
		if n != nil {
			c := *a
			c.Suspension.RestoreFailedOn = append(slices.Clone(a.Suspension.RestoreFailedOn), a.Node)
			c.Suspension.Reason = "it could not be restored on " + en.f.EventLog().nodeNameOf(a.Node)
			decisionsOf(en.f).moveAttempt(e, k, &c, n, n.FirstDisk())
			return
		}
	}
	end := &droverv1.SeenAttempt{Key: seen.GetKey(), Phase: droverv1.Phase_PHASE_FAILED, Cause: droverv1.Cause_CAUSE_INFRA, Usage: a.Seen().GetUsage(), Limits: a.Seen().GetLimits(),
		StartedMs: a.Seen().GetStartedMs(), RunningMs: a.Seen().GetRunningMs(), Level: a.Level, LevelNote: detail,
		Message: clip(fmt.Sprintf("its work is lost (%s of CPU time): %s; it starts again", formatElapsed(a.Seen().GetUsage().GetCpuMs()*1e6), detail), 1024)}
	attemptsOf(en.f).endAttempt(e, k, a, AttemptFailed, end)
}

// mayReachProbation reports whether, with an entry that is proposed, a checkpoint that could not be
// restored may go to a node on probation.
func (en levelEntries) mayReachProbation(e *droverv1.Entry) bool {
	failed := slices.ContainsFunc(e.GetAttempts().GetSeen(), func(seen *droverv1.SeenAttempt) bool {
		return seen.GetTargetRefused() == droverv1.Level_LEVEL_RUNNING
	})
	return failed && slices.ContainsFunc(en.f.nodes, func(n *Node) bool { return n.Probation })
}

// findRestoreNode returns the node with the most free CPU among those that take the attempt, can
// restore its checkpoint, have the capacity and have not failed to restore it. One that leaves soon
// comes after all others. It returns nil if there is none, or if the node that holds the image is
// gone.
func (en decisionEntries) findRestoreNode(k Key, a *Attempt, takes func(*Node) bool) *Node {
	imageNode, epoch := a.Node, a.Epoch
	if a.Suspension.ImageNode != 0 {
		imageNode, epoch = a.Suspension.ImageNode, a.Suspension.ImageEpoch
	}
	h := en.f.Node(imageNode)
	if h == nil || !h.Up || h.Epoch != epoch {
		return nil
	}
	var best *Node
	free := func(n *Node) Amounts { return AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1) }
	for _, n := range en.f.nodes {
		if !takes(n) || n.ID == imageNode || n.ID == a.Node || slices.Contains(a.Suspension.RestoreFailedOn, n.ID) || !CanRestore(h.Info, n.Info) {
			continue
		}
		if !en.f.jobs[k.Job].Demand(int(k.Stage)).fits(free(n)) {
			continue
		}
		stays := func(n *Node) int { return boolInt(!n.leavesBefore(en.f.now + max(int64(minStay), a.EstimateNS))) }
		if best == nil || cmp.Or(cmp.Compare(stays(n), stays(best)), cmp.Compare(free(n).CPU, free(best).CPU)) > 0 {
			best = n
		}
	}
	return best
}

// minStay is how long a node should at least stay to which a checkpoint is moved.
const minStay = 10 * time.Minute

// leavesBefore reports whether a maintenance window of the node begins before a time.
func (n *Node) leavesBefore(at int64) bool {
	return slices.ContainsFunc(n.Maintenance, func(w MaintenanceWindow) bool { return w.From < at })
}

// clearImage forgets the node that held the image.
func (a *Attempt) clearImage() {
	a.Suspension.ImageNode, a.Suspension.ImageEpoch, a.Suspension.ImageRun, a.Suspension.ImageDisk, a.Suspension.RestoreFailedOn = 0, 0, 0, 0, nil
}
