package threedsf

import (
	"math"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// regularQueues holds the regular jobs of each tenant in LAS_MQ queues, one set for
// jobs of high priority and one for low. Without Config.LASMQ it is unused and jobs
// are ordered by submission.
//
// The queue of each demoted job (QueueState) and the deficits of backlogged queues
// (DeficitState, by tenant) are policy states; the rest is filled in from the State
// in each cycle.
type regularQueues struct {
	byTenant []tenantQueues
}

// tenantQueues are the queues of one tenant: for high and for low priority.
type tenantQueues [2]struct {
	jobs   []queuedJob
	queues *lasmq.Queues
}

// queuedJob is a regular job and its queue, from 1.
type queuedJob struct {
	job   *scheduler.Job
	level int
	seq   int32
}

// milliContainers is the precision in which policy states hold containers.
const milliContainers = 1000

// deficitKey returns the key of the deficit of one queue of a tenant.
func deficitKey(t scheduler.TenantID, class uint8, queue int) scheduler.PolicyStateKey {
	return scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Tenant: t, Slot: int32(class)<<8 | int32(queue)}
}

// rankJobs sorts the regular jobs of all tenants into queues and requests a cycle
// for the next demotion. O(jobs x stages).
func (p *Policy) rankJobs() {
	r := &p.regular
	for len(r.byTenant) < len(p.s.Tenants()) {
		r.byTenant = append(r.byTenant, tenantQueues{})
	}
	for t := range r.byTenant {
		for c := range r.byTenant[t] {
			r.byTenant[t][c].jobs = r.byTenant[t][c].jobs[:0]
		}
	}
	seq := int32(-1)
	for j := range p.s.Jobs() {
		seq++
		class := p.classOf(j)
		if class != classHigh && class != classLow {
			continue
		}
		q := &r.byTenant[j.Spec.Tenant][class-classHigh]
		q.jobs = append(q.jobs, queuedJob{j, p.queueOf(j), seq})
	}
}

// queueOf returns the queue of a job: never above the one it was in.
func (p *Policy) queueOf(j *scheduler.Job) int {
	cfg := p.cfg.LASMQ
	n, known := p.s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID})
	from := min(max(int(n.Value), 1), cfg.Queues)
	if p.cfg.InitialQueueByInput && !known {
		from = cfg.QueueFor(1, cfg.PredictService(p.s.History(), j.Spec.Name, lasmq.InputBytes(j)))
	}
	service, rate := cfg.Service(j, p.now)
	q := cfg.QueueFor(from, service)
	if at := cfg.DemotionTime(q, service, rate, p.now); at < scheduler.Never {
		p.wakeAt(at)
	}
	return q
}

// fillQueues fills the queues of a tenant from the State. O(jobs of the tenant x
// stages).
func (p *Policy) fillQueues(t scheduler.TenantID, class uint8) *lasmq.Queues {
	q := &p.regular.byTenant[t][class-classHigh]
	if q.queues == nil {
		q.queues = lasmq.New(*p.cfg.LASMQ)
	}
	q.queues.Begin(p.now, func(i int) (lasmq.Account, bool) {
		n, ok := p.s.PolicyState(deficitKey(t, class, i))
		return lasmq.Account{Deficit: n.Real, Running: float64(n.Value) / milliContainers, At: n.At}, ok
	})
	for _, k := range q.jobs {
		q.queues.Add(k.job, k.level, k.seq)
	}
	return q.queues
}

// nextInQueues returns the next stage of a tenant's class that can be placed, by the
// deficits of its queues, or nil.
func (p *Policy) nextInQueues(t scheduler.TenantID, c *cursor) *scheduler.Stage {
	q := p.regular.byTenant[t][c.class-classHigh].queues
	for next := q.Next(); next != nil; next = q.Next() {
		for ; int(next.Stage) < len(next.Job.Stages); next.Stage++ {
			if g := next.Job.Stages[next.Stage]; g.Ready() && (p.isPlaceable(g) || p.shouldReserveNode(g)) {
				c.job, c.stage = next.Job, next.Stage
				return g
			}
		}
		q.Drop()
	}
	return nil
}

// usesQueues reports whether a class is ordered by queues.
func (p *Policy) usesQueues(class uint8) bool { return p.cfg.LASMQ != nil && class <= classLow }

// recordQueueStates records what the next cycle must know: who was demoted, and the
// deficits of queues with ready work left.
func (p *Policy) recordQueueStates() {
	if p.cfg.LASMQ == nil {
		return
	}
	var ready [lasmq.MaxQueues + 1]bool
	for t := range p.regular.byTenant {
		for class := classHigh; class <= classLow; class++ {
			clear(ready[:])
			q := &p.regular.byTenant[t][class-classHigh]
			for _, k := range q.jobs {
				ready[k.level] = ready[k.level] || k.job.Ready > 0
				p.recordQueue(k)
			}
			id := scheduler.TenantID(t)
			p.fillQueues(id, class).Accounts(func(i int) bool { return ready[i] }, func(i int, a lasmq.Account, keep bool) {
				key := deficitKey(id, class, i)
				if keep {
					p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(math.Round(a.Running * milliContainers)), Real: a.Deficit, At: a.At})
					return
				}
				key.Kind = scheduler.TombstoneState
				p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(scheduler.DeficitState)})
			})
		}
	}
}

// recordQueue records the queue of a job if it changed.
func (p *Policy) recordQueue(k queuedJob) {
	key := scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: k.job.Spec.ID}
	n, known := p.s.PolicyState(key)
	if (known && int64(k.level) > n.Value) || (!known && (k.level > 1 || p.cfg.InitialQueueByInput)) {
		p.recordState(scheduler.PolicyState{PolicyStateKey: key, Value: int64(k.level), At: p.now})
	}
}
