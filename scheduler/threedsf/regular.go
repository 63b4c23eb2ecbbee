package threedsf

import (
	"math"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// regular keeps the regular jobs of each tenant in LAS_MQ queues, one set for its
// jobs of high priority and one for those of low. It is used where
// Config.LASMQ is set; without it they come in order of submission.
//
// What must be remembered is in notes: the queue of a demoted job (NoteQueue)
// and the deficits of backlogged queues (NoteDeficit, by tenant). All else is
// filled in again from the State.
type regular struct {
	of []tenantQueues // by tenant
}

// tenantQueues are the queues of one tenant: of high and of low priority.
type tenantQueues [2]struct {
	jobs   []ranked
	queues *lasmq.Queues
}

// ranked is a regular job with its queue, from 1.
type ranked struct {
	job   *scheduler.Job
	level int
	seq   int32
}

// milli is the precision at which containers are noted.
const milli = 1000

// deficitKey is the key of the deficit of one queue of a tenant.
func deficitKey(t scheduler.TenantID, class uint8, queue int) scheduler.NoteKey {
	return scheduler.NoteKey{Kind: scheduler.NoteDeficit, Tenant: t, Slot: int32(class)<<8 | int32(queue)}
}

// rank sorts the regular jobs of all tenants into their queues. It asks for a
// cycle when the next one is due to be demoted. O(jobs x stages).
func (p *Policy) rank() {
	r := &p.regular
	for len(r.of) < len(p.s.Tenants()) {
		r.of = append(r.of, tenantQueues{})
	}
	for t := range r.of {
		for c := range r.of[t] {
			r.of[t][c].jobs = r.of[t][c].jobs[:0]
		}
	}
	seq := int32(-1)
	for j := range p.s.Jobs() {
		seq++
		class := p.classOf(j)
		if class != classHigh && class != classLow {
			continue
		}
		q := &r.of[j.Spec.Tenant][class-classHigh]
		q.jobs = append(q.jobs, ranked{j, p.queueOf(j), seq})
	}
}

// queueOf gives the queue of a job: never above the one it was in.
func (p *Policy) queueOf(j *scheduler.Job) int {
	cfg := p.cfg.LASMQ
	n, known := p.s.Note(scheduler.NoteKey{Kind: scheduler.NoteQueue, Job: j.Spec.ID})
	from := min(max(int(n.Value), 1), cfg.Queues)
	if p.cfg.Prior && !known {
		from = cfg.Level(1, cfg.Predict(p.s.History(), j.Spec.Name, lasmq.InputBytes(j)))
	}
	service, rate := cfg.Service(j, p.now)
	q := cfg.Level(from, service)
	if at := cfg.Until(q, service, rate, p.now); at < scheduler.Never {
		p.wakeAt(at)
	}
	return q
}

// fillQueues brings the queues of a tenant in line with the State.
// O(jobs of the tenant x stages).
func (p *Policy) fillQueues(t scheduler.TenantID, class uint8) *lasmq.Queues {
	q := &p.regular.of[t][class-classHigh]
	if q.queues == nil {
		q.queues = lasmq.New(*p.cfg.LASMQ)
	}
	q.queues.Begin(p.now, func(i int) (lasmq.Account, bool) {
		n, ok := p.s.Note(deficitKey(t, class, i))
		return lasmq.Account{Deficit: n.Real, Running: float64(n.Value) / milli, At: n.At}, ok
	})
	for _, k := range q.jobs {
		q.queues.Add(k.job, k.level, k.seq)
	}
	return q.queues
}

// dueInQueues gives the next stage of a tenant's class that can be placed, by
// the deficits of its queues, or nil.
func (p *Policy) dueInQueues(t scheduler.TenantID, c *cursor) *scheduler.Stage {
	q := p.regular.of[t][c.class-classHigh].queues
	for turn := q.Next(); turn != nil; turn = q.Next() {
		for ; int(turn.Stage) < len(turn.Job.Stages); turn.Stage++ {
			if g := turn.Job.Stages[turn.Stage]; g.Ready() && (p.placeable(g) || p.wants(g)) {
				c.job, c.stage = turn.Job, turn.Stage
				return g
			}
		}
		q.Drop()
	}
	return nil
}

// queued tells whether a class is ordered by queues.
func (p *Policy) queued(class uint8) bool { return p.cfg.LASMQ != nil && class <= classLow }

// remember notes what has to be known of the queues in the next cycle: who was
// demoted, and the deficits of the queues with ready work left.
func (p *Policy) remember() {
	if p.cfg.LASMQ == nil {
		return
	}
	var ready [lasmq.MaxQueues + 1]bool
	for t := range p.regular.of {
		for class := classHigh; class <= classLow; class++ {
			clear(ready[:])
			q := &p.regular.of[t][class-classHigh]
			for _, k := range q.jobs {
				ready[k.level] = ready[k.level] || k.job.Ready > 0
				p.noteQueue(k)
			}
			id := scheduler.TenantID(t)
			p.fillQueues(id, class).Accounts(func(i int) bool { return ready[i] }, func(i int, a lasmq.Account, keep bool) {
				key := deficitKey(id, class, i)
				if keep {
					p.note(scheduler.Note{NoteKey: key, Value: int64(math.Round(a.Running * milli)), Real: a.Deficit, At: a.At})
					return
				}
				key.Kind = scheduler.NoteForget
				p.note(scheduler.Note{NoteKey: key, Value: int64(scheduler.NoteDeficit)})
			})
		}
	}
}

// noteQueue notes the queue of a job where it is not what is known of it.
func (p *Policy) noteQueue(k ranked) {
	key := scheduler.NoteKey{Kind: scheduler.NoteQueue, Job: k.job.Spec.ID}
	n, known := p.s.Note(key)
	if (known && int64(k.level) > n.Value) || (!known && (k.level > 1 || p.cfg.Prior)) {
		p.note(scheduler.Note{NoteKey: key, Value: int64(k.level), At: p.now})
	}
}
