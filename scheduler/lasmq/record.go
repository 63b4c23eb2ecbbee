package lasmq

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// A policy's record of its queues in the State: the queue of each demoted job (QueueState), and the
// accounts of backlogged queues (DeficitState).

const milliContainers = 1000 // precision of containers in policy states

// recordedAccount is the account of queue i of a group in the State.
func (x *Index) recordedAccount(group, i int) (account, bool) {
	n, ok := x.state.PolicyState(x.deficitKey(group, i))
	return account{deficit: n.Real, running: float64(n.Value) / milliContainers, at: n.At}, ok
}

// Record passes the policy states for the next decision to record, in ascending order of groups: the demoted jobs'
// queues and the accounts of queues with ready work left. record returns false if the State refuses one. A group
// without anything to record is skipped until it changes. O(changes x log jobs + changed groups x queues).
func (x *Index) Record(now scheduler.Time, record func(scheduler.PolicyState) bool) {
	slices.Sort(x.unsettled)
	x.unsettled = slices.DeleteFunc(x.unsettled, func(group int) bool {
		settled := true
		put := func(n scheduler.PolicyState) { settled = !record(n) && settled }
		x.eachUnrecorded(group, func(j *scheduler.Job, level int) {
			put(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(level), At: now})
		})
		x.Queues(group).eachAccount(now, func(i int, a account, keep bool) {
			if k := x.deficitKey(group, i); keep {
				put(scheduler.PolicyState{PolicyStateKey: k, Value: int64(math.Round(a.running * milliContainers)), Real: a.deficit, At: a.at})
			} else {
				put(k.Tombstone())
			}
		})
		x.groups[group].unsettled = !settled
		return settled
	})
}
