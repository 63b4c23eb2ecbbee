package estimate

import "github.com/drover-run/drover/scheduler"

// travel measures what it costs that input lies elsewhere: the time that map
// tasks away from their data take longer, per byte, beside tasks of the same
// stage that ran at it.
type travel struct {
	stages map[scheduler.StageID]*halves
	ring   []scheduler.StageID
	next   int

	reads [distances]float64 // map tasks by the switches between them and their data, fading

	bytes   float64 // of compared remote tasks, fading
	seconds float64 // that they took longer, fading
	n       float64
}

type halves struct {
	local   int
	seconds float64 // sum over local tasks
}

const (
	travelStages = 256
	travelEnough = 8         // remote tasks with a local sibling
	travelFade   = 1.0 / 256 // of each new one
)

// observe takes a finished task. A remote one is compared with the mean of its
// stage's local ones so far.
func (v *travel) observe(t *Task, run float64) {
	if t.Kind != scheduler.KindMap {
		return
	}
	for d := range v.reads {
		v.reads[d] -= travelFade * v.reads[d]
	}
	v.reads[min(max(t.Remote, 0), distances-1)]++
	if t.Input < 1<<20 {
		return // small input: nothing to measure
	}
	if v.stages == nil {
		v.stages = map[scheduler.StageID]*halves{}
	}
	h := v.stages[t.ID]
	if h == nil {
		h = &halves{}
		if len(v.ring) < travelStages {
			v.ring = append(v.ring, t.ID)
		} else {
			delete(v.stages, v.ring[v.next])
			v.ring[v.next] = t.ID
			v.next = (v.next + 1) % travelStages
		}
		v.stages[t.ID] = h
	}
	if t.Remote == 0 {
		h.local++
		h.seconds += run
		return
	}
	if h.local < 3 {
		return
	}
	v.bytes += float64(t.Input) - travelFade*v.bytes
	v.seconds += run - h.seconds/float64(h.local) - travelFade*v.seconds
	v.n++
}

// distances is how many a map task may have from its data: 0 to 3 switches.
const distances = 4

// shares are the parts of the last few hundred map tasks at each distance; all are
// at their data before there are any.
func (v *travel) shares() (out [distances]float64) {
	all := 0.0
	for _, n := range v.reads {
		all += n
	}
	if all == 0 {
		out[0] = 1
		return out
	}
	for d, n := range v.reads {
		out[d] = n / all
	}
	return out
}

// Bandwidth is what one reader of remote data gets, in bytes per second, as
// far as tasks show it: false before enough remote tasks had local siblings. A
// remote task that is no slower shows nothing of a limit and counts as least
// cost: the answer is at most 10 GB/s and at least 1 kB/s.
func (b *Book) Bandwidth() (int64, bool) {
	v := &b.travel
	if v.n < travelEnough {
		return 0, false
	}
	return int64(v.bytes / min(max(v.seconds, v.bytes/1e10), v.bytes/1e3)), true
}
