package scheduler

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The reference is a slice, sorted after each step. Attempts leave and return, as in a try that is rolled back, with
// other needs than before; new ones are suspended late or, as in a copy of a State, in any order.
func TestSuspendedListAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list suspendedList
		var live, left []suspendedEntry
		attemptOf := func(e suspendedEntry) *Attempt {
			return &Attempt{Seq: e.Seq, Node: e.node, attemptDetails: &attemptDetails{SuspendedAt: e.SuspendedAt, Demand: Resources{CPU: e.cpu, Memory: e.memory}}}
		}
		slots, seq := int32(0), uint64(0)
		add := func(at Time) {
			seq++
			e := suspendedEntry{ResumeOrder: ResumeOrder{at, seq}, slot: slots, node: NodeID(slots % 3), cpu: rapid.Int64Range(0, 2).Draw(t, "cpu"), memory: 1}
			slots++
			list.add(attemptOf(e), e.slot)
			live = append(live, e)
			if len(list.entries) > 2*list.live+minRemoved { // a new attempt leaves no more behind
				t.Fatalf("%d entries of %d attempts", len(list.entries), list.live)
			}
		}
		for range rapid.IntRange(0, 10).Draw(t, "copied") {
			add(Time(rapid.Int64Range(0, 5).Draw(t, "at")))
		}
		for step := range rapid.IntRange(0, 400).Draw(t, "steps") {
			kind := rapid.IntRange(0, 5).Draw(t, "kind")
			if step%200 >= 100 && kind > 0 { // the list empties, so that most entries are of attempts that left
				kind = 5
			}
			switch kind {
			case 0, 1:
				add(Time(step / 4))
			case 2:
				add(Time(rapid.Int64Range(0, 5).Draw(t, "at")))
			case 3:
				if len(left) > 0 {
					i := rapid.IntRange(0, len(left)-1).Draw(t, "returns")
					e := left[i]
					e.cpu++
					list.add(attemptOf(e), e.slot)
					live, left = append(live, e), slices.Delete(left, i, i+1)
				}
			default:
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(t, "leaves")
					e := live[i]
					list.remove(attemptOf(e), e.slot)
					live, left = slices.Delete(live, i, i+1), append(left, e)
				}
			}
			slices.SortFunc(live, func(a, b suspendedEntry) int { return a.Compare(b.ResumeOrder) })
			var got []suspendedEntry
			for _, e := range list.entries {
				if e.slot >= 0 {
					got = append(got, e)
				}
			}
			if !slices.Equal(got, live) || list.live != len(live) {
				t.Fatalf("%d live, %v, want %v", list.live, got, live)
			}
			if len(list.entries) > len(live)+len(left) {
				t.Fatalf("%d entries of %d attempts that there ever were", len(list.entries), len(live)+len(left))
			}
		}
	})
}

// While a search reads the list, entries keep their places: an attempt that is suspended meanwhile compacts nothing.
func TestSuspendedListStaysWhileItIsRead(t *testing.T) {
	s := New()
	attempt := func(i int) *Attempt {
		return &Attempt{Seq: uint64(i), attemptDetails: &attemptDetails{SuspendedAt: Time(i)}}
	}
	const all = 3 * minRemoved
	for i := range all {
		s.suspended.add(attempt(i), int32(i))
	}
	s.suspended.readers++
	for i := range all {
		s.suspended.remove(attempt(i), int32(i))
	}
	s.suspended.add(attempt(all), all)
	if n := len(s.suspended.entries); n != all+1 {
		t.Errorf("%d entries while the list is read, want %d", n, all+1)
	}
	s.suspended.readers--
	s.suspended.add(attempt(all+1), all+1)
	if n := len(s.suspended.entries); n != 2 {
		t.Errorf("%d entries afterwards, want 2", n)
	}
}
