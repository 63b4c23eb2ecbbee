package facts

import (
	"sort"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Events of jobs and events of the cluster (nodes, tenants, tokens, the scheduler)
// are kept apart, so that no large job pushes out who drained a node.
const (
	MaxEvents        = 10_000 // of jobs; older ones are dropped
	MaxClusterEvents = 10_000
)

// eventRing has the newest events, in ascending order of their numbers.
type eventRing struct {
	list  []*Event
	start int // index of the oldest once the ring is full
}

func (r *eventRing) add(e *Event, most int) {
	if len(r.list) < most {
		r.list = append(r.list, e)
		return
	}
	r.list[r.start] = e
	r.start = (r.start + 1) % most
}

// at returns the i-th oldest event.
func (r *eventRing) at(i int) *Event { return r.list[(r.start+i)%len(r.list)] }

// after returns how many events have a number of at most seq. O(log n).
func (r *eventRing) after(seq uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.at(i).Seq > seq })
}

// addEvent keeps ev and fills in its number, time, actor and kind.
func (f *Facts) addEvent(e *droverv1.Entry, kind string, ev *Event) {
	f.eventSeq++
	ev.Seq, ev.Index, ev.At, ev.Actor, ev.Kind = f.eventSeq, f.index, f.now, clip(e.GetActor(), 128), kind
	ev.Text = clip(ev.Text, 512)
	f.keepEvent(ev)
}

func (f *Facts) keepEvent(ev *Event) {
	if ev.JobID == 0 {
		f.clusterEvents.add(ev, MaxClusterEvents)
		return
	}
	f.jobEvents.add(ev, MaxEvents)
}

// EventsSince returns at most limit events with a sequence number above seq,
// oldest first. The events are immutable.
func (f *Facts) EventsSince(seq uint64, limit int) (out []*Event) {
	j, c := f.jobEvents.after(seq), f.clusterEvents.after(seq)
	for len(out) < limit {
		moreJob, moreCluster := j < len(f.jobEvents.list), c < len(f.clusterEvents.list)
		switch {
		case moreJob && (!moreCluster || f.jobEvents.at(j).Seq < f.clusterEvents.at(c).Seq):
			out = append(out, f.jobEvents.at(j))
			j++
		case moreCluster:
			out = append(out, f.clusterEvents.at(c))
			c++
		default:
			return out
		}
	}
	return out
}

// LastEvent returns the sequence number of the newest event.
func (f *Facts) LastEvent() uint64 { return f.eventSeq }
