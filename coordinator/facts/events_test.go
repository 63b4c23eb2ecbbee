package facts

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// TestJobsPushOutNoEventOfTheCluster drains a node before a job with more events
// than are kept.
func TestJobsPushOutNoEventOfTheCluster(t *testing.T) {
	f, e := New(), &droverv1.Entry{Actor: "user/ops"}
	f.EventLog().add(e, "node.drain", &Event{Node: "n1"})
	for range MaxEvents + 100 {
		f.EventLog().add(e, "task.placed", &Event{JobID: 1})
	}
	check := func(f *Facts) {
		t.Helper()
		all := f.EventLog().Since(0, 1<<30)
		if len(all) != MaxEvents+1 || all[0].Kind != "node.drain" || all[0].Actor != "user/ops" || all[1].Seq != 102 {
			t.Fatalf("%d events, the first: %+v", len(all), all[0])
		}
	}
	check(f)
	var b bytes.Buffer
	if err := f.Snapshot().Encode(&b); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(&b)
	if err != nil {
		t.Fatal(err)
	}
	check(back)
}

// TestEventsSinceAgreesWithAList compares both rings with one list of all events.
func TestEventsSinceAgreesWithAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 5
		var f Facts
		var all []*Event
		for i, ofJob := range rapid.SliceOfN(rapid.Bool(), 0, 40).Draw(t, "of a job") {
			ev, ring := &Event{Seq: uint64(i + 1)}, &f.clusterEvents
			if ofJob {
				ev.JobID, ring = 1, &f.jobEvents
			}
			ring.add(ev, most)
			all = append(all, ev)
		}
		left := map[bool]int{true: most, false: most} // by whether it is of a job
		var kept []*Event
		for _, ev := range slices.Backward(all) {
			if left[ev.JobID != 0]--; left[ev.JobID != 0] >= 0 {
				kept = append([]*Event{ev}, kept...)
			}
		}
		since, limit := rapid.Uint64Range(0, 42).Draw(t, "since"), rapid.IntRange(0, 12).Draw(t, "limit")
		want := slices.DeleteFunc(slices.Clone(kept), func(ev *Event) bool { return ev.Seq <= since })
		want = want[:min(limit, len(want))]
		if got := f.EventLog().Since(since, limit); !slices.Equal(got, want) {
			t.Fatalf("%d events since %d, want %d", len(got), since, len(want))
		}
	})
}
