package timeline

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
)

// reservationList is the paper's linked list (two-tier Fig. 7) implemented naively: all
// reservations, with the free capacity summed up for each query.
type reservationList struct {
	total        []int64
	reservations []reservation
}

type reservation struct {
	start, end Time
	need       []int64
}

func (l *reservationList) free(at Time) []int64 {
	out := slices.Clone(l.total)
	for _, t := range l.reservations {
		if t.start <= at && at < t.end {
			for r, v := range t.need {
				out[r] -= v
			}
		}
	}
	return out
}

// changeTimes returns from and every later start and end.
func (l *reservationList) changeTimes(from Time) []Time {
	out := []Time{from}
	for _, t := range l.reservations {
		for _, at := range []Time{t.start, t.end} {
			if at > from && at != Never {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (l *reservationList) fits(start, end Time, d []int64) bool {
	for _, at := range l.changeTimes(start) {
		if at < end && !fits(d, l.free(at)) {
			return false
		}
	}
	return true
}

// earliest tries every time at which something changes.
func (l *reservationList) earliest(from, duration, before Time, d []int64) Time {
	for _, at := range l.changeTimes(from) {
		if at < before && l.fits(at, at.Add(time.Duration(duration)), d) {
			return at
		}
	}
	return Never
}

// latest tries the last time and every start whose end is at a change.
func (l *reservationList) latest(from, duration, by Time, d []int64) Time {
	best := -Never
	try := func(at Time) {
		if at >= from && at <= by && at > best && l.fits(at, at.Add(time.Duration(duration)), d) {
			best = at
		}
	}
	try(by)
	for _, at := range l.changeTimes(from) {
		try(at.Add(-time.Duration(duration)))
	}
	return best
}

func drawSpan(t *rapid.T) Time {
	if rapid.IntRange(0, 9).Draw(t, "for ever") == 0 {
		return Never
	}
	return Time(rapid.IntRange(1, 40).Draw(t, "duration"))
}

// The tree answers as the list does after any reservations, releases, changes of
// capacity and forgetting, in one page or many.
func TestTimelineMatchesThePapersList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 5).Draw(t, "resources")
		l := &reservationList{total: make([]int64, k)}
		for i := range l.total {
			l.total[i] = int64(rapid.IntRange(3, 9).Draw(t, "total"))
		}
		line := newTimeline(l.total)
		neg := func(d []int64) []int64 {
			out := slices.Clone(d)
			for i := range out {
				out[i] = -out[i]
			}
			return out
		}
		vector := func() []int64 {
			d := make([]int64, k)
			for i := range d {
				d[i] = int64(rapid.IntRange(0, 5).Draw(t, "d"))
			}
			return d
		}
		past := Time(0)
		width := rapid.SampledFrom([]int{60, 4000}).Draw(t, "width")
		for range rapid.IntRange(1, 300).Draw(t, "operations") {
			at := past + Time(rapid.IntRange(0, width).Draw(t, "at"))
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 4:
				x := reservation{start: at, end: at.Add(time.Duration(drawSpan(t))), need: vector()}
				l.reservations = append(l.reservations, x)
				line.change(x.start, x.end, neg(x.need))
			case op < 6 && len(l.reservations) > 0:
				i := rapid.IntRange(0, len(l.reservations)-1).Draw(t, "drop")
				x := l.reservations[i]
				if x.start < past {
					continue
				}
				line.change(x.start, x.end, x.need)
				l.reservations = slices.Delete(l.reservations, i, i+1)
			case op == 6 && width < 100:
				past += Time(rapid.IntRange(0, 5).Draw(t, "passes"))
				line.forget(past)
			default:
				d, duration := vector(), drawSpan(t)
				before := Never
				if rapid.Bool().Draw(t, "bounded") {
					before = at + 50
				}
				if got, want := line.earliest(at, duration, before, d), l.earliest(at, duration, before, d); got != want {
					t.Fatalf("earliest(%d, %d, %d, %v) = %d, the list says %d", at, duration, before, d, got, want)
				}
				by := at + Time(rapid.IntRange(0, width).Draw(t, "by"))
				if got, want := line.latest(at, duration, by, d), l.latest(at, duration, by, d); got != want {
					t.Fatalf("latest(%d, %d, %d, %v) = %d, the list says %d", at, duration, by, d, got, want)
				}
				got := make([]int64, k)
				line.freeAt(at, got)
				if want := l.free(at); !slices.Equal(got, want) {
					t.Fatalf("free at %d: %v, the list says %v", at, got, want)
				}
			}
		}
		line.eachStep(past, func(at Time, free []int64) bool {
			if want := l.free(at); !slices.Equal(free, want) {
				t.Fatalf("step at %d: %v, the list says %v", at, free, want)
			}
			return true
		})
		for _, x := range l.reservations {
			if x.start >= past {
				line.change(x.start, x.end, x.need)
			}
		}
	})
}

// The first time at which a need does not fit is in the range that is asked about, or there is none.
func TestFirstMisfit(t *testing.T) {
	var p Profile
	b := p.AddBin([]int64{4})
	p.Reserve(b, -1, 10, 20, &Need{Base: []int64{3}})
	for _, x := range []struct {
		from, to Time
		need     int64
		want     Time
	}{{0, 30, 2, 10}, {0, Never, 2, 10}, {0, 10, 2, Never}, {15, 30, 2, 15}, {20, 30, 2, Never}, {0, 30, 1, Never}, {0, 30, 5, 0}} {
		if got := p.FirstMisfit(b, -1, x.from, x.to, &Need{Base: []int64{x.need}}); got != x.want {
			t.Errorf("%d does not fit first in [%d, %d) at %d, want %d", x.need, x.from, x.to, got, x.want)
		}
	}
}

// Releasing every reservation leaves one step with the full capacity.
func TestReleaseRestoresTheProfile(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 2))
	var p Profile
	b := p.AddBin([]int64{1000, 1000}, Disk{IO: 500, Space: 500}, Disk{IO: 500, Space: 500})
	type res struct {
		n          Need
		disk       int16
		start, end Time
	}
	var all []res
	for range 20_000 {
		at := Time(r.IntN(1_000_000))
		x := res{Need{Base: []int64{int64(r.IntN(9)), 1}, IO: int64(r.IntN(3)), Space: 1}, int16(r.IntN(2)), at, at + Time(1+r.IntN(5000))}
		p.Reserve(b, x.disk, x.start, x.end, &x.n)
		all = append(all, x)
	}
	if p.Steps(b) < 20_000 {
		t.Fatalf("only %d steps", p.Steps(b))
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		p.Release(b, all[i].disk, all[i].start, all[i].end, &all[i].n)
	}
	if got := p.Free(b, 1234, nil); p.Steps(b) != 1 || !slices.Equal(got, []int64{1000, 1000, 500, 500, 500, 500}) {
		t.Errorf("%d steps, free %v", p.Steps(b), got)
	}
}

func TestEarliestOnNodes(t *testing.T) {
	gib := int64(1) << 30
	need := func(cpu, memory, io int64) Need { return Need{Base: []int64{cpu, memory}, IO: io} }
	build := func() *Profile {
		var p Profile
		p.AddBin([]int64{4000, 8 * gib}, Disk{100, 50})
		p.AddBin([]int64{4000, 8 * gib}, Disk{60, 100}, Disk{60, 100})
		p.AddBin([]int64{8000, 8 * gib})
		return &p
	}
	for name, c := range map[string]struct {
		taken []func(p *Profile)
		need  Need
		want  Spot
		none  bool
	}{
		"ties go to the lowest node":                      {need: need(1000, gib, 10), want: Spot{0, 0, 5}},
		"a node without disks serves only who needs none": {need: need(8000, gib, 0), want: Spot{2, -1, 5}},
		"a need is not split over two disks":              {need: need(1000, gib, 110), none: true},
		"the second disk has capacity first": {
			taken: []func(p *Profile){
				func(p *Profile) { n := need(0, 0, 100); p.Reserve(0, 0, 0, 90, &n) },
				func(p *Profile) { n := need(0, 0, 50); p.Reserve(1, 0, 0, 40, &n) },
				func(p *Profile) { n := need(0, 0, 50); p.Reserve(1, 1, 0, 30, &n) },
			},
			need: need(1000, gib, 20), want: Spot{1, 1, 30},
		},
		"a closed node is not used": {
			taken: []func(p *Profile){func(p *Profile) { p.SetClosed(0, true) }},
			need:  need(1000, gib, 10), want: Spot{1, 0, 5},
		},
		"nothing fits on a node that shrank until its reservations have passed": {
			taken: []func(p *Profile){
				func(p *Profile) { n := need(8000, gib, 0); p.Reserve(2, -1, 0, 70, &n) },
				func(p *Profile) { p.Resize(2, []int64{7000, 8 * gib}) },
			},
			need: need(6000, 0, 0), want: Spot{2, -1, 70},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := build()
			for _, f := range c.taken {
				f(p)
			}
			got, ok := p.Earliest(5, 10, Never, &c.need)
			if ok == c.none || (ok && got != c.want) {
				t.Errorf("got %+v %v, want %+v", got, ok, c.want)
			}
		})
	}
}

func TestNeedOfNothing(t *testing.T) {
	for name, n := range map[string]Need{"a resource": {Base: []int64{0, 5}}, "I/O": {IO: 1}, "space": {Space: 1}} {
		if n.IsZero() {
			t.Errorf("a need of %s counts as nothing", name)
		}
	}
	if !(&Need{Base: []int64{0}}).IsZero() {
		t.Error("nothing is a need")
	}
}

// A bin replaces another one with the same resources and disks if it has as much of each.
func TestCanReplace(t *testing.T) {
	var p Profile
	disk := Disk{IO: 5, Space: 7}
	lost := p.AddBin([]int64{4, 8}, disk, disk)
	for name, c := range map[string]struct {
		bin  int32
		want bool
	}{
		"an equal one":             {p.AddBin([]int64{4, 8}, disk, disk), true},
		"a larger one":             {p.AddBin([]int64{5, 8}, Disk{IO: 6, Space: 7}, disk), true},
		"less of a resource":       {p.AddBin([]int64{9, 7}, disk, disk), false},
		"less I/O of a disk":       {p.AddBin([]int64{4, 8}, disk, Disk{IO: 4, Space: 9}), false},
		"less space of a disk":     {p.AddBin([]int64{4, 8}, Disk{IO: 9, Space: 6}, disk), false},
		"one disk fewer":           {p.AddBin([]int64{4, 8}, Disk{IO: 10, Space: 14}), false},
		"one disk more":            {p.AddBin([]int64{4, 8}, disk, disk, disk), false},
		"as many, of more sorts":   {p.AddBin([]int64{4, 8, 5, 7}, disk), false},
		"the lost one, as it was":  {lost, true},
		"one without disks at all": {p.AddBin([]int64{4, 8}), false},
	} {
		if got := p.CanReplace(c.bin, lost); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A reader of the log of changed bins gets all since its position, in order, or is told that some are gone: because the log
// has come round, was enlarged since, or is another one, shorter than the reader knew.
func TestChangedSince(t *testing.T) {
	for name, c := range map[string]struct {
		bins, changes int
		at            int // changes before the reader's position
		want          int // bins that it gets, -1 if it has fallen behind
	}{
		"nothing since":         {3, 5, 5, 0},
		"some":                  {3, 5, 2, 3},
		"as many as the log":    {3, 100, 36, 64},
		"one more than the log": {3, 100, 35, -1},
		"a longer log":          {65, 200, 72, 128},
		"one more than that":    {65, 200, 71, -1},
		"from a longer life":    {3, 5, 6, -1},
	} {
		var l changeLog
		for i := range c.changes {
			l.add(int32(i%c.bins), c.bins)
		}
		first := l.head - uint64(c.changes) // an empty log is enlarged before its first entry
		var got []int32
		if ok := l.since(first+uint64(c.at), func(b int32) { got = append(got, b) }); ok != (c.want >= 0) || len(got) != max(0, c.want) {
			t.Errorf("%s: %v, %d bins", name, ok, len(got))
		}
		for i, b := range got {
			if int(b) != (c.at+i)%c.bins {
				t.Errorf("%s: bin %d at %d", name, b, i)
				break
			}
		}
	}
	var l changeLog
	l.add(0, 64)
	before := l.head
	for i := range 129 { // the enlarged log has 128 entries
		if l.add(1, 65); l.since(before, func(int32) {}) || l.since(before-1, func(int32) {}) {
			t.Fatalf("a reader of the log before it was enlarged is told of %d changes", i+1)
		}
	}
}

// One pool with 100,000 reservations, and 1,000 nodes with 100 each: find the earliest
// hole, reserve it, release it.
func BenchmarkProfile(b *testing.B) {
	for name, bins := range map[string]int{"pool of 100000": 1, "1000 nodes of 100": 1000} {
		b.Run(name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(7, 7))
			var p Profile
			for range bins {
				p.AddBin([]int64{32_000, 128 << 30}, Disk{IO: 1e9, Space: 1e12})
			}
			draw := func() (Need, time.Duration) {
				return Need{Base: []int64{int64(1+r.IntN(16)) * 1000, int64(1+r.IntN(64)) << 30}, IO: int64(r.IntN(3e8))}, time.Duration(1+r.IntN(3600)) * time.Second
			}
			per, from := 100_000/bins, make([]Time, bins)
			for i := range 100_000 {
				n, d := draw()
				bin := int32(i % bins)
				if i/bins > per/10 { // about as many at once as fit
					from[bin] += Time(450 * time.Second)
				}
				s, ok := p.EarliestOn(bin, from[bin], d, Never, &n)
				if !ok {
					b.Fatal("no hole")
				}
				p.Reserve(bin, s.Disk, s.At, s.At.Add(d), &n)
			}
			b.ReportMetric(float64(p.Steps(0)), "steps/bin")
			b.ResetTimer()
			for b.Loop() {
				n, d := draw()
				s, ok := p.Earliest(0, d, Never, &n)
				if !ok {
					b.Fatal("no hole")
				}
				p.Reserve(s.Bin, s.Disk, s.At, s.At.Add(d), &n)
				p.Release(s.Bin, s.Disk, s.At, s.At.Add(d), &n)
			}
		})
	}
}
