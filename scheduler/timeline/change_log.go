package timeline

// changeLog is a ring of the changed bins of a profile in order. A reader that has fallen behind by
// more than the ring must examine every bin.
type changeLog struct {
	ring []int32
	head uint64
}

func (l *changeLog) add(b int32, bins int) {
	if len(l.ring) < bins {
		size := 64
		for size < bins {
			size *= 2
		}
		l.ring, l.head = make([]int32, size), l.head+uint64(2*size) // every reader has fallen behind
	}
	l.ring[l.head&uint64(len(l.ring)-1)] = b
	l.head++
}

// since yields, in order, the bins that changed since the log was at position at; a bin
// may occur more than once. It returns false, and yields nothing, if the log has
// wrapped.
func (l *changeLog) since(at uint64, yield func(int32)) bool {
	if l.head-at > uint64(len(l.ring)) { // also true if at is beyond head
		return false
	}
	for ; at < l.head; at++ {
		yield(l.ring[at&uint64(len(l.ring)-1)])
	}
	return true
}
