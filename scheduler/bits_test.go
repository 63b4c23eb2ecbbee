package scheduler

import (
	"testing"

	"pgregory.net/rapid"
)

// The reference is a map.
func TestBitsetAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int32{1, 63, 64, 65, 4096, 4097, 262_144, 262_145, 1_000_000}).Draw(t, "n")
		b, reference := newBitset(n), map[int32]bool{}
		if rapid.Bool().Draw(t, "full") && n <= 4097 {
			b.setAll(n)
			for i := range n {
				reference[i] = true
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			i := rapid.Int32Range(0, n-1).Draw(t, "i")
			if rapid.Bool().Draw(t, "set") {
				b.set(i)
				reference[i] = true
			} else {
				b.clear(i)
				delete(reference, i)
			}
			from := rapid.Int32Range(0, n-1).Draw(t, "from")
			want := int32(-1)
			for k := range reference {
				if k >= from && (want < 0 || k < want) {
					want = k
				}
			}
			if got := b.next(from); got != want {
				t.Fatalf("next(%d) = %d, want %d", from, got, want)
			}
			skip := rapid.Int32Range(0, 70).Draw(t, "skip")
			to := b.next(from)
			for range skip {
				if to >= 0 {
					to = b.next(to + 1)
				}
			}
			if got := b.nth(from, skip); got != to {
				t.Fatalf("nth(%d, %d) = %d, want %d", from, skip, got, to)
			}
			if to >= 0 {
				if got := b.countIn(from, to); got != skip {
					t.Fatalf("countIn(%d, %d) = %d, want %d", from, to, got, skip)
				}
			}
		}
		if got := b.countIn(0, b.n); int(got) != len(reference) {
			t.Fatalf("count %d, want %d", got, len(reference))
		}
	})
}
