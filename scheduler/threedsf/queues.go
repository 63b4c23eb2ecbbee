package threedsf

import (
	"math"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// milliContainers is the precision in which policy states hold containers.
const milliContainers = 1000

// deficitKey returns the key of the deficit of one queue of a tenant.
func deficitKey(t scheduler.TenantID, class uint8, queue int) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Tenant: t, Slot: int32(class)<<8 | int32(queue)}
}

// newQueueIndex returns the index of the regular jobs in LAS_MQ queues: those of each
// tenant and priority have queues of their own. The queue of each demoted job
// (QueueState) and the deficits of backlogged queues (DeficitState, by tenant) are
// policy states.
func (p *Policy) newQueueIndex() *lasmq.Index {
	x := lasmq.NewIndex(*p.cfg.LASMQ, p.cfg.InitialQueueByInput, func(j *scheduler.Job) int {
		class := p.classOf(j)
		if class != classHigh && class != classLow {
			return -1
		}
		return queueGroup(j.Spec.Tenant, class)
	}, func(group, queue int) (lasmq.Account, bool) {
		t, class := tenantOfGroup(group)
		n, ok := p.s.PolicyState(deficitKey(t, class, queue))
		return lasmq.Account{Deficit: n.Real, Running: float64(n.Value) / milliContainers, At: n.At}, ok
	})
	x.OnlyContended = true
	return x
}

// queueGroup returns the group of a tenant's regular jobs of one class.
func queueGroup(t scheduler.TenantID, class uint8) int { return 2*int(t) + int(class-classHigh) }

// tenantOfGroup is the inverse of queueGroup.
func tenantOfGroup(group int) (scheduler.TenantID, uint8) {
	return scheduler.TenantID(group / 2), classHigh + uint8(group%2)
}

// syncQueues synchronises the queues with the State.
func (p *Policy) syncQueues() { p.queueIndex.Sync(p.s, p.now, 2*len(p.s.Tenants())) }

// beginQueues starts a pass through the queues of a tenant's class.
func (p *Policy) beginQueues(group int) *lasmq.Queues {
	q := p.queueIndex.Queues(group)
	q.Begin(p.now)
	return q
}

// nextInQueues returns the next stage of a tenant's class that can be placed, by the
// deficits of its queues, or nil.
func (p *Policy) nextInQueues(t scheduler.TenantID, c *cursor) *scheduler.Stage {
	q := p.queueIndex.Queues(queueGroup(t, c.class))
	for next, ok := q.Next(); ok; next, ok = q.Next() {
		for ; int(*next.Stage) < len(next.Job.Stages); *next.Stage++ {
			if g := next.Job.Stages[*next.Stage]; g.Ready() && (p.isPlaceable(g) || p.shouldReserveNode(g)) {
				c.job, c.stage = next.Job, *next.Stage
				return g
			}
		}
		q.Drop()
	}
	return nil
}

// usesQueues reports whether a class of a tenant is ordered by queues: two or more of
// its jobs had ready work at the last syncQueues.
func (p *Policy) usesQueues(t scheduler.TenantID, class uint8) bool {
	return p.cfg.LASMQ != nil && class <= classLow && p.queueIndex.Contended(queueGroup(t, class))
}

// recordQueueStates records what the next cycle must know: who was demoted, and the
// deficits of queues with ready work left. O(changes x log jobs + changed tenants x
// queues).
func (p *Policy) recordQueueStates() {
	if p.cfg.LASMQ == nil {
		return
	}
	p.syncQueues()
	p.queueIndex.Unsettled(func(group int) bool {
		t, class := tenantOfGroup(group)
		before := len(p.states)
		p.queueIndex.Unrecorded(group, func(j *scheduler.Job, level int) {
			p.recordState(scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}, Value: int64(level), At: p.now})
		})
		p.beginQueues(group).Accounts(func(i int, a lasmq.Account, keep bool) {
			key := deficitKey(t, class, i)
			if keep {
				p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(math.Round(a.Running * milliContainers)), Real: a.Deficit, At: a.At})
				return
			}
			key.Kind = scheduler.TombstoneState
			p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(scheduler.DeficitState)})
		})
		return len(p.states) == before
	})
}
