package heaps

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type entry struct{ key, at int }

// The reference is a slice, sorted after each step.
func TestHeapAgainstSlice(t *testing.T) {
	order := Order[*entry]{Less: func(a, b *entry) bool { return a.key < b.key }, Moved: func(x *entry, i int) { x.at = i }}
	rapid.Check(t, func(t *rapid.T) {
		var h []*entry
		for i := range rapid.IntRange(0, 20).Draw(t, "first") {
			h = append(h, &entry{rapid.IntRange(0, 9).Draw(t, "key"), i})
		}
		order.Init(h)
		for i, x := range h {
			x.at = i // Init does not call Moved for entries that keep their index
		}
		all := slices.Clone(h)
		leave := func(x *entry) {
			if x.at != -1 {
				t.Fatalf("an entry that left is at %d", x.at)
			}
			all = slices.DeleteFunc(all, func(y *entry) bool { return y == x })
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			kind := rapid.IntRange(0, 3).Draw(t, "kind")
			switch {
			case kind == 0 || len(all) == 0:
				x := &entry{rapid.IntRange(0, 9).Draw(t, "key"), -1}
				order.Push(&h, x)
				all = append(all, x)
			case kind == 1:
				leave(order.Pop(&h))
			default:
				x := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
				if kind == 2 {
					leave(order.Remove(&h, x.at))
					break
				}
				x.key = rapid.IntRange(0, 9).Draw(t, "key")
				order.Fix(h, x.at)
			}
			if len(h) != len(all) {
				t.Fatalf("%d entries, want %d", len(h), len(all))
			}
			for i, x := range h {
				if x.at != i || x.key < h[(i-1)/2*min(i, 1)].key {
					t.Fatalf("entry %d has key %d and index %d, its parent key %d", i, x.key, x.at, h[(i-1)/2*min(i, 1)].key)
				}
			}
		}
		for last := 0; len(h) > 0; {
			x := order.Pop(&h)
			if x.key < last {
				t.Fatalf("key %d after %d", x.key, last)
			}
			last = x.key
		}
	})
}
