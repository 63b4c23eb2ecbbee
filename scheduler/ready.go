package scheduler

import "slices"

// closeGaps removes the nil entries of ended jobs when they are half of the order.
func closeGaps(order []*Job, ready *bitset, rank func(*Job, int32)) []*Job {
	gone := 0
	if n := len(order); n < 64 || n&(n-1) != 0 { // check only when append would grow the slice
		return order
	}
	for _, j := range order {
		if j == nil {
			gone++
		}
	}
	if 2*gone < len(order) {
		return order
	}
	order = slices.DeleteFunc(order, func(j *Job) bool { return j == nil })
	for i, j := range order {
		rank(j, int32(i))
	}
	rebuildReady(ready, order)
	return order
}

// rebuildReady recomputes the set of ranks with ready work.
func rebuildReady(ready *bitset, order []*Job) {
	clear(ready.l0)
	clear(ready.l1)
	clear(ready.l2)
	for i, j := range order {
		if j != nil && j.Ready > 0 {
			ready.set(int32(i))
		}
	}
}

// insertJob inserts a job by (Submitted, ID) and updates the ranks behind it. It scans from
// the end: most jobs are submitted last.
func insertJob(order []*Job, j *Job, rank func(*Job, int32)) []*Job {
	at := len(order)
	for i := at - 1; i >= 0; i-- {
		k := order[i]
		if k == nil {
			continue
		}
		if k.Spec.Submitted < j.Spec.Submitted || (k.Spec.Submitted == j.Spec.Submitted && k.Spec.ID < j.Spec.ID) {
			break
		}
		at = i
	}
	order = slices.Insert(order, at, j)
	for i := at; i < len(order); i++ {
		if order[i] != nil {
			rank(order[i], int32(i))
		}
	}
	return order
}

func ceil(x float64) int64 {
	n := int64(x)
	if float64(n) < x {
		n++
	}
	return n
}

// countHigh adds n to the tenant's count of ready jobs if the job has high priority.
func (t *Tenant) countHigh(j *Job, n int32) {
	if j.Spec.Priority == PriorityHigh {
		t.ReadyHigh += n
	}
}
