package fluid

import "math"

// mq is LAS_MQ on a fluid server: a job starts in the first queue and falls
// into the next when its attained service exceeds the queue's threshold.
// Queues with jobs share the server by their weights, and the first job of a
// queue gets its whole share.
type mq struct {
	jobs   []Job
	ends   []float64
	now    float64
	had    []float64
	queues [][]int32 // waiting jobs, the first is served
	limit  []float64
	weight []float64
	sum    float64 // of the weights of queues with jobs
}

func newMQ(jobs []Job, ends []float64, q Queues) *mq {
	m := &mq{jobs: jobs, ends: ends, had: make([]float64, len(jobs)), queues: make([][]int32, q.K)}
	limit, weight := q.First, 1.0
	for i := range q.K {
		if i == q.K-1 {
			limit = math.Inf(1)
		}
		m.limit, m.weight = append(m.limit, limit), append(m.weight, weight)
		limit *= q.Step
		weight *= q.Weight
	}
	return m
}

// until is the time queue k's first job needs at its rate to end or to fall.
func (m *mq) until(k int) float64 {
	i := m.queues[k][0]
	return (min(m.jobs[i].Size, m.limit[k]) - m.had[i]) * m.sum / m.weight[k]
}

func (m *mq) rates() {
	m.sum = 0
	for k, q := range m.queues {
		if len(q) > 0 {
			m.sum += m.weight[k]
		}
	}
}

func (m *mq) next() float64 {
	least := math.Inf(1)
	for k, q := range m.queues {
		if len(q) > 0 {
			least = min(least, m.until(k))
		}
	}
	return m.now + max(0, least)
}

func (m *mq) advance(t float64) {
	d := t - m.now
	var first int // the queue whose job changes, if one does
	least := math.Inf(1)
	for k, q := range m.queues {
		if len(q) > 0 {
			if u := m.until(k); u < least {
				first, least = k, u
			}
		}
	}
	for k, q := range m.queues {
		if len(q) > 0 {
			m.had[q[0]] += d * m.weight[k] / m.sum
		}
	}
	due := t >= m.now+least // as next adds it, so that rounding cannot lose it
	m.now = t
	if due {
		m.move(first, t)
	}
}

// move ends the first job of queue k or lets it fall.
func (m *mq) move(k int, t float64) {
	i := m.queues[k][0]
	m.queues[k] = m.queues[k][1:]
	if m.jobs[i].Size <= m.limit[k] {
		m.ends[i] = t
	} else {
		m.had[i] = m.limit[k]
		m.queues[k+1] = append(m.queues[k+1], i)
	}
	m.rates()
}

func (m *mq) arrive(i int32) {
	m.queues[0] = append(m.queues[0], i)
	m.rates()
}
