package sortmerge

import "bytes"

// Merger merges sorted readers into one sorted sequence. Equal keys come in the
// order of their readers. It is a loser tree: one comparison for each level and
// record (Knuth, The Art of Computer Programming, volume 3, section 5.4.1).
type Merger struct {
	readers []*Reader
	live    []bool
	losers  []int // inner nodes; losers[0] is the winner
	started bool
}

// NewMerger merges readers and takes ownership of them.
func NewMerger(readers []*Reader) *Merger {
	return &Merger{readers: readers, live: make([]bool, len(readers)), losers: make([]int, max(len(readers), 1))}
}

// Close closes all readers.
func (m *Merger) Close() {
	for _, r := range m.readers {
		r.Close()
	}
}

// Record returns the current record, valid until the next call of Next.
func (m *Merger) Record() Record { return m.current().rec }

func (m *Merger) current() *Reader { return m.readers[m.losers[0]] }

// Next advances to the next record. It returns false after the last.
func (m *Merger) Next() (bool, error) {
	if len(m.readers) == 0 {
		return false, nil
	}
	if !m.started {
		return m.start()
	}
	w := m.losers[0]
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
	return m.live[m.losers[0]], nil
}

func (m *Merger) start() (bool, error) {
	m.started = true
	for i, r := range m.readers {
		ok, err := r.Next()
		if err != nil {
			return false, err
		}
		m.live[i] = ok
	}
	m.losers[0] = m.build(1)
	return m.live[m.losers[0]], nil
}

// build plays the matches below node and returns the winner. The nodes from
// len(readers) on are the leaves.
func (m *Merger) build(node int) int {
	n := len(m.readers)
	if node >= n {
		return node - n
	}
	a, b := m.build(2*node), m.build(2*node+1)
	if m.less(b, a) {
		a, b = b, a
	}
	m.losers[node] = b
	return a
}

// replay plays the matches from the leaf of reader w up to the root.
func (m *Merger) replay(w int) {
	for node := (w + len(m.readers)) / 2; node > 0; node /= 2 {
		if m.less(m.losers[node], w) {
			w, m.losers[node] = m.losers[node], w
		}
	}
	m.losers[0] = w
}

// less orders readers by current record; exhausted readers come last.
func (m *Merger) less(a, b int) bool {
	if !m.live[a] || !m.live[b] {
		return m.live[a]
	}
	x, y := m.readers[a], m.readers[b]
	if x.prefix != y.prefix {
		return x.prefix < y.prefix
	}
	if c := bytes.Compare(x.rec.Key, y.rec.Key); c != 0 {
		return c < 0
	}
	return a < b
}
