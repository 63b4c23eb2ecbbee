package scheduler

import (
	"cmp"
	"slices"
)

// jobOrder is jobs by (Submitted, ID), and the set of those with ready work: one for all jobs, one for each tenant's own.
type jobOrder struct {
	jobs     []*Job // by rank; nil for a job that ended, never at the end
	ready    bitset // ranks of those with ready work
	ofTenant bool
}

// rank returns the field of a job that holds its rank in this order.
func (o *jobOrder) rank(j *Job) *int32 {
	if o.ofTenant {
		return &j.tenantRank
	}
	return &j.rank
}

// next returns the next job with ready work at or after rank at, and the rank to continue from; nil at the end. O(1).
func (o *jobOrder) next(at int32) (*Job, int32) {
	r := o.ready.next(at)
	if r < 0 {
		return nil, at
	}
	return o.jobs[r], r + 1
}

// insert inserts a job without ready work, searching from the end. It reports whether ranks of other jobs fell.
func (o *jobOrder) insert(j *Job) (lowered bool) {
	lowered = o.closeGaps()
	at := len(o.jobs)
	for i := at - 1; i >= 0; i-- {
		if k := o.jobs[i]; k == nil {
			continue
		} else if cmp.Or(cmp.Compare(k.Spec.Submitted, j.Spec.Submitted), cmp.Compare(k.Spec.ID, j.Spec.ID)) < 0 {
			break
		}
		at = i
	}
	o.jobs = slices.Insert(o.jobs, at, j)
	o.ready.grow(int32(len(o.jobs)))
	if *o.rank(j) = int32(at); at < len(o.jobs)-1 {
		o.renumber()
	}
	return lowered
}

// remove removes a job that has no ready work.
func (o *jobOrder) remove(j *Job) {
	o.jobs[*o.rank(j)] = nil
	for n := len(o.jobs); n > 0 && o.jobs[n-1] == nil; n-- {
		o.jobs = o.jobs[:n-1]
	}
}

func (o *jobOrder) setReady(j *Job, ready bool) {
	if r := *o.rank(j); ready {
		o.ready.set(r)
	} else {
		o.ready.clear(r)
	}
}

// closeGaps removes the entries of ended jobs when they are half of the order, and reports whether it did.
func (o *jobOrder) closeGaps() bool {
	n := len(o.jobs)
	if n < 64 || n&(n-1) != 0 { // check only when append would grow the slice
		return false
	}
	gaps := 0
	for _, j := range o.jobs {
		if j == nil {
			gaps++
		}
	}
	if 2*gaps < n {
		return false
	}
	o.jobs = slices.DeleteFunc(o.jobs, func(j *Job) bool { return j == nil })
	o.renumber()
	return true
}

func (o *jobOrder) renumber() {
	o.ready.setAll(0)
	for i, j := range o.jobs {
		if j == nil {
			continue
		}
		if *o.rank(j) = int32(i); j.Ready > 0 {
			o.ready.set(int32(i))
		}
	}
}
