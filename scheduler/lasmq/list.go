package lasmq

import (
	"cmp"
	"slices"
	"sort"

	"github.com/drover-run/drover/scheduler"
)

// jobKey is the position of a job in its queue: by the queue's order, then by submission, then by id.
type jobKey struct {
	order     float64
	submitted scheduler.Time
	id        scheduler.JobID
}

func (a jobKey) compare(b jobKey) int {
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.submitted, b.submitted), cmp.Compare(a.id, b.id))
}

// listedJob is a job in a list.
type listedJob struct {
	jobKey
	job  *scheduler.Job
	rest rest
}

// rest is until when an unchanged job can be skipped: until a time, and while no node fits its class.
type rest struct {
	class scheduler.MisfitClass
	until scheduler.Time
}

const maxChunk = 64 // the length at which a chunk of a list is split

// jobList is a sorted list of jobs, in chunks, so that an insertion moves at most maxChunk entries.
// The zero value is an empty list.
type jobList struct {
	chunks  [][]listedJob // none is empty
	version uint64        // number of changes
	spare   []listedJob   // memory for the first chunk
}

// position is a place in a list: the index at of an entry in a chunk.
type position struct {
	chunk, at int
}

// seek returns the position of the first entry that is not before a key. O(log length).
func (l *jobList) seek(k jobKey) position {
	c := sort.Search(len(l.chunks), func(i int) bool {
		last := l.chunks[i][len(l.chunks[i])-1]
		return last.compare(k) >= 0
	})
	if c == len(l.chunks) {
		return position{chunk: c}
	}
	return position{c, sort.Search(len(l.chunks[c]), func(i int) bool { return l.chunks[c][i].compare(k) >= 0 })}
}

// get returns the entry at a position, or nil at the end.
func (l *jobList) get(p position) *listedJob {
	if p.chunk >= len(l.chunks) {
		return nil
	}
	return &l.chunks[p.chunk][p.at]
}

func (l *jobList) after(p position) position {
	if p.at++; p.at >= len(l.chunks[p.chunk]) {
		return position{chunk: p.chunk + 1}
	}
	return p
}

func (l *jobList) empty() bool { return len(l.chunks) == 0 }

// insert inserts an entry whose key is not in the list.
func (l *jobList) insert(e listedJob) {
	l.version++
	p := l.seek(e.jobKey)
	if p.chunk == len(l.chunks) {
		if p.chunk == 0 {
			l.chunks = append(l.chunks, append(l.spare[:0], e))
			return
		}
		p = position{p.chunk - 1, len(l.chunks[p.chunk-1])}
	}
	c := slices.Insert(l.chunks[p.chunk], p.at, e)
	l.chunks[p.chunk] = c
	if len(c) >= maxChunk {
		half := len(c) / 2
		l.chunks = slices.Insert(l.chunks, p.chunk+1, slices.Clone(c[half:]))
		clear(c[half:])
		l.chunks[p.chunk] = c[:half]
	}
}

// remove removes the entry with a key, which must be in the list.
func (l *jobList) remove(k jobKey) {
	p := l.seek(k)
	if e := l.get(p); e == nil || e.jobKey != k {
		panic("lasmq: a job is not in its queue's list")
	}
	l.version++
	if l.chunks[p.chunk] = slices.Delete(l.chunks[p.chunk], p.at, p.at+1); len(l.chunks[p.chunk]) == 0 {
		l.spare = l.chunks[p.chunk]
		l.chunks = slices.Delete(l.chunks, p.chunk, p.chunk+1)
	}
}
