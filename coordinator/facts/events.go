package facts

import (
	"slices"
	"sort"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Events of jobs and events of the cluster (nodes, tenants, tokens, the scheduler) are kept in
// separate lists, so that a large job does not displace the record of who drained a node.
const (
	MaxEvents        = 10_000 // of jobs; older ones are dropped
	MaxClusterEvents = 10_000
)

// Events of one job that it takes with it into the history: the first and the newest.
const (
	firstJobEvents = 20
	lastJobEvents  = 80
)

// jobEventList has the first and the newest events of one job.
type jobEventList struct {
	first []*Event
	last  eventRing
}

func (l *jobEventList) add(e *Event) {
	if len(l.first) < firstJobEvents {
		l.first = append(l.first, e)
		return
	}
	l.last.add(e, lastJobEvents)
}

func (l *jobEventList) all() []*Event {
	if l == nil {
		return nil
	}
	out := slices.Clone(l.first)
	for i := range l.last.list {
		out = append(out, l.last.at(i))
	}
	return out
}

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

// add keeps ev and fills in its number, time, actor and kind.
func (l EventLog) add(e *droverv1.Entry, kind string, ev *Event) {
	l.f.eventSeq++
	ev.Seq, ev.Index, ev.At, ev.Actor, ev.Kind = l.f.eventSeq, l.f.index, l.f.now, clip(e.GetActor(), 128), kind
	ev.Text = clip(ev.Text, 512)
	l.keep(ev)
}

func (l EventLog) keep(ev *Event) {
	if ev.JobID == 0 {
		l.f.clusterEvents.add(ev, MaxClusterEvents)
		return
	}
	l.f.jobEvents.add(ev, MaxEvents)
	list := l.f.eventsOfJob[ev.JobID]
	if list == nil {
		list = &jobEventList{}
		l.f.eventsOfJob[ev.JobID] = list
	}
	list.add(ev)
}

// keepOfJobs forgets the events of jobs that were forgotten, once a snapshot is read.
func (l EventLog) keepOfJobs() {
	for id := range l.f.eventsOfJob {
		if l.f.jobs[id] == nil {
			delete(l.f.eventsOfJob, id)
		}
	}
}

// Since returns at most limit events with a sequence number above seq,
// oldest first. The events are immutable.
func (l EventLog) Since(seq uint64, limit int) (out []*Event) {
	j, c := l.f.jobEvents.after(seq), l.f.clusterEvents.after(seq)
	for len(out) < limit {
		moreJob, moreCluster := j < len(l.f.jobEvents.list), c < len(l.f.clusterEvents.list)
		switch {
		case moreJob && (!moreCluster || l.f.jobEvents.at(j).Seq < l.f.clusterEvents.at(c).Seq):
			out = append(out, l.f.jobEvents.at(j))
			j++
		case moreCluster:
			out = append(out, l.f.clusterEvents.at(c))
			c++
		default:
			return out
		}
	}
	return out
}

// Last returns the sequence number of the newest event.
func (l EventLog) Last() uint64 { return l.f.eventSeq }
