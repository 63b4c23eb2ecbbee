package threedsf

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// deficitKey returns the key of the deficit of one queue of a group.
func deficitKey(group, queue int) scheduler.PolicyStateKey {
	t, class := tenantOfGroup(group)
	return scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Tenant: t, Slot: int32(class)<<8 | int32(queue)}
}

// queues are the regular jobs in LAS_MQ queues, separate for each tenant and priority. The queue of each
// demoted job (QueueState) and the deficits of backlogged queues (DeficitState, by tenant) are policy states.
type queues struct {
	c     *cycle
	index *lasmq.Index // nil without Config.LASMQ
}

// init makes the index, if there are queues.
func (l *queues) init() {
	if l.c.cfg.LASMQ == nil {
		return
	}
	x := lasmq.NewIndex(*l.c.cfg.LASMQ, l.c.cfg.InitialQueueByInput, func(j *scheduler.Job) int {
		class := l.c.classOf(j)
		if class != classHigh && class != classLow {
			return -1
		}
		return queueGroup(j.Spec.Tenant, class)
	}, deficitKey)
	x.OnlyContended = true
	x.AccountsVersion = func(group int) uint64 {
		t, _ := tenantOfGroup(group)
		return l.c.s.Tenant(t).StateVersion
	}
	l.index = x
}

// queueGroup returns the group of a tenant's regular jobs of one class.
func queueGroup(t scheduler.TenantID, class uint8) int { return 2*int(t) + int(class-classHigh) }

// tenantOfGroup is the inverse of queueGroup.
func tenantOfGroup(group int) (scheduler.TenantID, uint8) {
	return scheduler.TenantID(group / 2), classHigh + uint8(group%2)
}

// sync synchronises the queues with the State.
func (l *queues) sync() { l.index.Sync(l.c.s, l.c.now, 2*len(l.c.s.Tenants())) }

// of returns the queues of a tenant's class.
func (l *queues) of(t scheduler.TenantID, class uint8) *lasmq.Queues {
	return l.index.Queues(queueGroup(t, class))
}

// areUsed reports whether queues order a class of a tenant: two or more of its jobs had ready work
// at the last sync.
func (l *queues) areUsed(t scheduler.TenantID, class uint8) bool {
	return l.c.cfg.LASMQ != nil && class <= classLow && l.index.Contended(queueGroup(t, class))
}

// mayBeUnread reports whether a job may be in no queue yet, since very many jobs are read over several decisions.
func (l *queues) mayBeUnread(j *scheduler.Job) bool { return l.index != nil && l.index.IsUnread(j) }

// recordStates records for the next cycle which jobs were demoted, and the deficits of queues with
// ready work left. O(changes x log jobs + changed tenants x queues).
func (l *queues) recordStates() {
	if l.c.cfg.LASMQ == nil {
		return
	}
	l.sync()
	if l.index.HasUnread() {
		l.c.wakeAt(l.c.now + 1)
	}
	l.index.Record(l.c.now, l.c.recordState)
}
