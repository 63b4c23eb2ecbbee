// Package heaps maintains slices as binary heaps, as container/heap does, but with typed entries
// and without five methods for each type: an Order holds the two functions that are needed.
package heaps

// Order is the order of the entries of heaps. It may serve any number of slices.
type Order[T any] struct {
	// Less reports whether a is before b.
	Less func(a, b T) bool
	// Moved, if not nil, is called with the new index of an entry that moves, and with -1 for an
	// entry that is removed.
	Moved func(x T, i int)
}

// Init makes a heap of a slice. O(n).
func (o *Order[T]) Init(h []T) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		o.down(h, i)
	}
}

// Push adds an entry. O(log n).
func (o *Order[T]) Push(h *[]T, x T) {
	*h = append(*h, x)
	o.moved(x, len(*h)-1)
	o.up(*h, len(*h)-1)
}

// Pop removes the first entry. O(log n).
func (o *Order[T]) Pop(h *[]T) T { return o.Remove(h, 0) }

// Remove removes the entry at an index. O(log n).
func (o *Order[T]) Remove(h *[]T, i int) T {
	last := len(*h) - 1
	x := (*h)[i]
	if i != last {
		o.swap(*h, i, last)
		o.Fix((*h)[:last], i)
	}
	var none T
	(*h)[last] = none
	*h = (*h)[:last]
	o.moved(x, -1)
	return x
}

// Fix moves the entry at an index to its place after its order has changed. O(log n).
func (o *Order[T]) Fix(h []T, i int) {
	if !o.down(h, i) {
		o.up(h, i)
	}
}

func (o *Order[T]) up(h []T, i int) {
	for parent := (i - 1) / 2; i > 0 && o.Less(h[i], h[parent]); parent = (i - 1) / 2 {
		o.swap(h, i, parent)
		i = parent
	}
}

// down moves an entry towards the end, and reports whether it did.
func (o *Order[T]) down(h []T, i int) (moved bool) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return moved
		}
		if right := child + 1; right < len(h) && o.Less(h[right], h[child]) {
			child = right
		}
		if !o.Less(h[child], h[i]) {
			return moved
		}
		o.swap(h, i, child)
		i, moved = child, true
	}
}

func (o *Order[T]) swap(h []T, i, k int) {
	h[i], h[k] = h[k], h[i]
	o.moved(h[i], i)
	o.moved(h[k], k)
}

func (o *Order[T]) moved(x T, i int) {
	if o.Moved != nil {
		o.Moved(x, i)
	}
}
