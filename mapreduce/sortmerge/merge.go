package sortmerge

import (
	"bytes"
	"math"
)

// merger merges sorted readers into one sorted sequence. Equal keys come in the
// order of their readers. It is a loser tree: one comparison for each level and
// record (Knuth, The Art of Computer Programming, volume 3, section 5.4.1).
type merger struct {
	readers []*Reader
	live    []bool
	losers  []contender // inner nodes; losers[0] is the winner
	started bool
}

// contender is a reader in the tree with the prefix of its current key, or the largest prefix if
// the reader is exhausted. The prefix decides most matches without access to the reader.
type contender struct {
	prefix uint64
	reader uint64
}

// newMerger merges readers and takes ownership of them.
func newMerger(readers []*Reader) *merger {
	return &merger{readers: readers, live: make([]bool, len(readers)), losers: make([]contender, max(len(readers), 1))}
}

// close closes all readers.
func (m *merger) close() {
	for _, r := range m.readers {
		r.close()
	}
}

// record returns the current record, valid until the next call of Next.
func (m *merger) record() *Record { return &m.current().rec }

func (m *merger) current() *Reader { return m.readers[m.losers[0].reader] }

// next advances to the next record. It returns false after the last.
func (m *merger) next() (bool, error) {
	if len(m.readers) == 0 {
		return false, nil
	}
	if !m.started {
		return m.start()
	}
	w := m.losers[0].reader
	r := m.readers[w]
	prefix, size := r.prefix, len(r.rec.Key)
	ok, err := r.Next()
	if err != nil {
		return false, err
	}
	if ok && r.shortKey && size <= 8 && prefix == r.prefix && size == len(r.rec.Key) {
		return true, nil // the same key again from the same reader is still the smallest
	}
	m.live[w] = ok
	m.replay(w)
	return m.live[m.losers[0].reader], nil
}

func (m *merger) start() (bool, error) {
	m.started = true
	for i, r := range m.readers {
		ok, err := r.Next()
		if err != nil {
			return false, err
		}
		m.live[i] = ok
	}
	m.losers[0] = m.build(1)
	return m.live[m.losers[0].reader], nil
}

// contender returns reader i with the prefix of its current key.
func (m *merger) contender(i uint64) contender {
	if !m.live[i] {
		return contender{math.MaxUint64, i}
	}
	return contender{m.readers[i].prefix, i}
}

// build plays the matches below node and returns the winner. The nodes from
// len(readers) on are the leaves.
func (m *merger) build(node int) contender {
	n := len(m.readers)
	if node >= n {
		return m.contender(uint64(node - n))
	}
	a, b := m.build(2*node), m.build(2*node+1)
	if b.prefix < a.prefix || b.prefix == a.prefix && m.lessByKey(b.reader, a.reader) {
		a, b = b, a
	}
	m.losers[node] = b
	return a
}

// replay plays the matches from the leaf of reader i up to the root. The winner of a match is
// unpredictable, so a mask swaps the two instead of a branch that the processor would mispredict.
func (m *merger) replay(i uint64) {
	w := m.contender(i)
	for node := (int(i) + len(m.readers)) / 2; node > 0; node /= 2 {
		l := &m.losers[node]
		var swap uint64
		if l.prefix < w.prefix {
			swap = math.MaxUint64
		}
		if l.prefix == w.prefix && m.lessByKey(l.reader, w.reader) {
			swap = math.MaxUint64
		}
		prefix, reader := (l.prefix^w.prefix)&swap, (l.reader^w.reader)&swap
		l.prefix, l.reader = l.prefix^prefix, l.reader^reader
		w.prefix, w.reader = w.prefix^prefix, w.reader^reader
	}
	m.losers[0] = w
}

// lessByKey orders readers whose current prefixes are equal; exhausted readers come last.
func (m *merger) lessByKey(a, b uint64) bool {
	if !m.live[a] || !m.live[b] {
		return m.live[a]
	}
	if c := bytes.Compare(m.readers[a].rec.Key, m.readers[b].rec.Key); c != 0 {
		return c < 0
	}
	return a < b
}
