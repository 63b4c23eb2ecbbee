package scheduler

// tablePage is the number of tasks of a page of a taskTable.
const (
	tablePageBits = 9
	tablePage     = 1 << tablePageBits
)

// taskTable has a value for each task of a stage. Most values are zero most of the time, and cost nothing: a
// page has memory only while one of its values is not zero. A stage with at most tablePage tasks has one page.
type taskTable[T comparable] struct {
	few   []T // of a stage with one page
	pages []tableOfPage[T]
}

type tableOfPage[T comparable] struct {
	values *[tablePage]T // nil while used is 0
	used   int32         // values that are not zero
}

// newTaskTable returns a table for n tasks. O(min(n, tablePage) + n/tablePage).
func newTaskTable[T comparable](n int32) taskTable[T] {
	if n <= tablePage {
		return taskTable[T]{few: make([]T, n)}
	}
	return taskTable[T]{pages: make([]tableOfPage[T], (n+tablePage-1)/tablePage)}
}

// isZero reports whether t was not made by newTaskTable.
func (t *taskTable[T]) isZero() bool { return t.few == nil && t.pages == nil }

// get returns the value of task i. O(1).
func (t *taskTable[T]) get(i int32) (v T) {
	if t.pages == nil {
		return t.few[i]
	}
	if p := t.pages[i>>tablePageBits].values; p != nil {
		return p[i&(tablePage-1)]
	}
	return v
}

// set replaces the value of task i. O(1); O(tablePage) for the first value of a page.
func (t *taskTable[T]) set(i int32, v T) {
	if t.pages == nil {
		t.few[i] = v
		return
	}
	var zero T
	p := &t.pages[i>>tablePageBits]
	if p.values == nil {
		if v == zero {
			return
		}
		p.values = new([tablePage]T)
	}
	old := &p.values[i&(tablePage-1)]
	if *old != zero {
		p.used--
	}
	if v != zero {
		p.used++
	}
	if *old = v; p.used == 0 {
		p.values = nil
	}
}
