package fluid

import "math"

// lasmq is LAS_MQ on a fluid server: a job starts in the first queue and is demoted to the next
// when its attained service exceeds the queue's threshold. Non-empty queues share the server by
// their weights; the first job of a queue gets the whole share of its queue.
type lasmq struct {
	jobs       []Job
	ends       []float64
	now        float64
	attained   []float64
	queues     [][]int32 // the first job of each queue is served
	thresholds []float64
	weights    []float64
	weightSum  float64 // sum over the non-empty queues
}

// leastWeight is the smallest weight of a queue, the smallest number of full precision. A queue of
// weight 0 could never be served, even alone.
const leastWeight = 0x1p-1022

func newLASMQ(jobs []Job, ends []float64, q Queues) *lasmq {
	m := &lasmq{jobs: jobs, ends: ends, attained: make([]float64, len(jobs)), queues: make([][]int32, q.Count)}
	limit, weight := q.FirstThreshold, 1.0
	for i := range q.Count {
		if i == q.Count-1 {
			limit = math.Inf(1)
		}
		m.thresholds, m.weights = append(m.thresholds, limit), append(m.weights, weight)
		limit *= q.ThresholdRatio
		weight = max(leastWeight, weight*q.WeightRatio)
	}
	return m
}

// timeToChange returns the time until queue k's first job ends or is demoted at its current rate.
func (m *lasmq) timeToChange(k int) float64 {
	i := m.queues[k][0]
	return (min(m.jobs[i].Size, m.thresholds[k]) - m.attained[i]) * m.weightSum / m.weights[k]
}

func (m *lasmq) updateWeightSum() {
	m.weightSum = 0
	for k, q := range m.queues {
		if len(q) > 0 {
			m.weightSum += m.weights[k]
		}
	}
}

func (m *lasmq) nextEvent() float64 {
	least := math.Inf(1)
	for k, q := range m.queues {
		if len(q) > 0 {
			least = min(least, m.timeToChange(k))
		}
	}
	return m.now + max(0, least)
}

func (m *lasmq) advance(t float64) {
	d := t - m.now
	var first int // the queue whose job changes, if any
	least := math.Inf(1)
	for k, q := range m.queues {
		if len(q) > 0 {
			if u := m.timeToChange(k); u < least {
				first, least = k, u
			}
		}
	}
	for k, q := range m.queues {
		if len(q) > 0 {
			m.attained[q[0]] += d * m.weights[k] / m.weightSum
		}
	}
	changes := t >= m.now+least // computed as in nextEvent, so that rounding cannot lose it
	m.now = t
	if changes {
		m.endOrDemote(first, t)
	}
}

// endOrDemote ends the first job of queue k or demotes it.
func (m *lasmq) endOrDemote(k int, t float64) {
	i := m.queues[k][0]
	m.queues[k] = m.queues[k][1:]
	if m.jobs[i].Size <= m.thresholds[k] {
		m.ends[i] = t
	} else {
		m.attained[i] = m.thresholds[k]
		m.queues[k+1] = append(m.queues[k+1], i)
	}
	m.updateWeightSum()
}

func (m *lasmq) arrive(i int32) {
	m.queues[0] = append(m.queues[0], i)
	m.updateWeightSum()
}
