package backfill

// slab hands out zeroed values and takes all of them back at once.
type slab[T any] struct {
	chunks [][]T
	n      int // values handed out
	free   []*T
}

const slabChunk = 512

func (s *slab[T]) next() *T {
	if n := len(s.free) - 1; n >= 0 {
		x := s.free[n]
		s.free = s.free[:n]
		return x
	}
	if s.n == len(s.chunks)*slabChunk {
		s.chunks = append(s.chunks, make([]T, slabChunk))
	}
	x := &s.chunks[s.n/slabChunk][s.n%slabChunk]
	s.n++
	return x
}

func (s *slab[T]) reset() {
	for i := 0; i*slabChunk < s.n; i++ {
		clear(s.chunks[i])
	}
	s.n, s.free = 0, s.free[:0]
}

// memory holds the parts of projects, which a planner reuses from one try to the next (Reset).
type memory struct {
	projects   slab[project]
	groups     slab[group]
	items      slab[item]
	groupLists []*group
	itemLists  []*item
	amounts    []int64
}

func (m *memory) reset() {
	m.projects.reset()
	m.groups.reset()
	m.items.reset()
	m.groupLists, m.itemLists, m.amounts = m.groupLists[:0], m.itemLists[:0], m.amounts[:0]
}

// recycle makes the parts of a project available again; nothing may refer to them. The project's
// lists are kept, empty.
func (m *memory) recycle(pr *project) {
	for _, g := range pr.groups {
		for _, it := range g.items {
			*it = item{}
		}
		m.items.free = append(m.items.free, g.items...)
		clear(g.items)
		*g = group{items: g.items[:0], base: g.base[:0]}
	}
	m.groups.free = append(m.groups.free, pr.groups...)
	clear(pr.groups)
	*pr = project{groups: pr.groups[:0]}
	m.projects.free = append(m.projects.free, pr)
}

// carve returns an empty list with space for n entries at the end of an arena. Lists that were
// carved before stay valid.
func carve[T any](arena *[]T, n int) []T {
	if len(*arena)+n > cap(*arena) {
		*arena = make([]T, 0, max(2*cap(*arena), n, slabChunk))
	}
	at := len(*arena)
	*arena = (*arena)[:at+n]
	return (*arena)[at : at : at+n]
}
