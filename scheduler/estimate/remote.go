package estimate

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/predict"
)

// remoteReadCost measures the cost of reading remote input: how much longer, per byte, map tasks
// away from their data take than tasks of the same stage at their data.
type remoteReadCost struct {
	stages predict.BoundedMap[scheduler.StageID, localSiblings]

	byDistance [distances]float64 // fading number of map tasks by switches to their data

	bytes    float64 // read by the compared remote tasks, fading
	seconds  float64 // by which they took longer, fading
	compared float64
}

type localSiblings struct {
	count   int
	seconds float64 // sum over the local tasks
}

const (
	maxReadStages    = 256
	minComparedReads = 8         // remote tasks with local siblings
	readFade         = 1.0 / 256 // for each new task
)

// observe records a finished task. A remote task is compared with the mean of the local tasks of
// its stage so far.
func (v *remoteReadCost) observe(t *Task, run float64) {
	if t.Kind != scheduler.KindMap {
		return
	}
	for d := range v.byDistance {
		v.byDistance[d] -= readFade * v.byDistance[d]
	}
	v.byDistance[min(max(t.DataDistance, 0), distances-1)]++
	if t.InputBytes < 1<<20 {
		return // too small to show a difference
	}
	h := v.stages.GetOrAdd(t.ID)
	if t.DataDistance == 0 {
		h.count++
		h.seconds += run
		return
	}
	if h.count < 3 {
		return
	}
	v.bytes += float64(t.InputBytes) - readFade*v.bytes
	v.seconds += run - h.seconds/float64(h.count) - readFade*v.seconds
	v.compared++
}

const distances = 4 // the number of possible distances of a map task from its data: 0 to 3 switches

// distanceShares returns the shares of recent map tasks at each distance; without map tasks, all
// are at their data.
func (v *remoteReadCost) distanceShares() (out [distances]float64) {
	all := 0.0
	for _, n := range v.byDistance {
		all += n
	}
	if all == 0 {
		return [distances]float64{1}
	}
	for d, n := range v.byDistance {
		out[d] = n / all
	}
	return out
}

// Bandwidth returns the measured bandwidth of one reader of remote data in bytes per second, 1 kB/s to 10 GB/s (if
// remote tasks are no slower, there is no visible limit); false until enough remote tasks had local siblings.
func (b *Estimator) Bandwidth() (int64, bool) {
	v := &b.remoteReads
	if v.compared < minComparedReads {
		return 0, false
	}
	return int64(v.bytes / min(max(v.seconds, v.bytes/1e10), v.bytes/1e3)), true
}
