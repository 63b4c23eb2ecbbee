package backfill

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// class is all work of one shape: it finds the same holes. Where there is much of
// it the earliest start on every bin is kept in a finder.
type class struct {
	need  Need
	bound time.Duration
	soft  bool
	n     int // pieces of work that have not ended
	find  *finder
	holes [holes]hole // see freedHole
}

type classKey struct {
	base      [MaxBase]int64
	dims      int
	io, space int64
	bound     time.Duration
	soft      bool
}

// manyOfAClass is from how many pieces of work on a finder pays: it costs one
// search on every bin to make.
const manyOfAClass = 16

// classOf gives the class of a request.
func (p *Planner) classOf(r *Request) *class {
	k := classKey{dims: len(r.Need.Base), io: r.Need.IO, space: r.Need.Space, bound: r.Bound, soft: r.Soft}
	copy(k.base[:], r.Need.Base)
	if p.classes == nil {
		p.classes = map[classKey]*class{}
	}
	c := p.classes[k]
	if c == nil {
		c = &class{need: Need{Base: slices.Clone(r.Need.Base), IO: r.Need.IO, Space: r.Need.Space}, bound: r.Bound, soft: r.Soft}
		p.classes[k] = c
	}
	return c
}

// forgetClasses drops the classes of which there is no work any more, once there
// are more of them than of pieces of work.
func (p *Planner) forgetClasses() {
	if len(p.classes) <= 2*len(p.projects)+64 {
		return
	}
	for k, c := range p.classes {
		if c.n == 0 {
			delete(p.classes, k)
		}
	}
}

// finder keeps, for one class, the earliest start on each bin from now on, in a
// tournament: the earliest of all bins is at its root. What is stored is exact
// for the instant it was asked for and a lower bound for later ones, so that an
// entry that has passed is worked out again when it comes to the root.
type finder struct {
	of   *class
	now  scheduler.Time // of the last question
	at   []scheduler.Time
	disk []int16
	win  []int32 // win[1] is the root, the leaves start at half of its length
	seen uint64  // changes of the profile taken in
}

// finderOf gives the finder of an item's class where it pays, else nil.
func (p *Planner) finderOf(it *item) *finder {
	c := it.group.class
	if c.find == nil {
		if c.n < p.many || p.prof.Bins() < int32(p.many) {
			return nil
		}
		c.find = &finder{of: c, seen: math.MaxUint64}
	}
	return c.find
}

// earliest gives the earliest spot at or after now and before an instant, ties to
// the lowest bin: what a search on every bin gives. O(log bins) and a search on
// each bin that changed since the last question.
func (f *finder) earliest(p *Planner, now, before scheduler.Time) (Spot, bool) {
	f.catchUp(p, now)
	for {
		b := f.win[1]
		switch at := f.at[b]; {
		case at >= before:
			return Spot{Bin: -1}, false
		case at >= now:
			return Spot{Bin: b, Disk: f.disk[b], At: at}, true
		}
		f.look(p, b)
	}
}

// catchUp takes in what changed in the profile.
func (f *finder) catchUp(p *Planner, now scheduler.Time) {
	log := &p.prof.log
	known := f.seen != math.MaxUint64 && now >= f.now && len(f.at) == len(p.prof.bins)
	f.now = now
	if !known || !log.since(f.seen, func(b int32) { f.look(p, b) }) {
		f.build(p)
	}
	f.seen = log.head
}

// build works out every bin.
func (f *finder) build(p *Planner) {
	n := len(p.prof.bins)
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	f.at = slices.Grow(f.at[:0], n)[:n]
	f.disk = slices.Grow(f.disk[:0], n)[:n]
	f.win = slices.Grow(f.win[:0], 2*leaves)[:2*leaves]
	for i := range leaves {
		f.win[leaves+i] = int32(min(i, n-1))
	}
	for b := range int32(n) {
		f.measure(p, b)
	}
	for i := leaves - 1; i > 0; i-- {
		f.win[i] = f.better(f.win[2*i], f.win[2*i+1])
	}
}

// look works one bin out again.
func (f *finder) look(p *Planner, b int32) {
	was := f.at[b]
	f.measure(p, b)
	if f.at[b] == was {
		return
	}
	for i := (len(f.win)/2 + int(b)) / 2; i > 0; i /= 2 {
		f.win[i] = f.better(f.win[2*i], f.win[2*i+1])
	}
}

func (f *finder) measure(p *Planner, b int32) {
	f.at[b] = scheduler.Never
	if p.prof.bins[b].closed || p.bin(b).spare {
		return
	}
	span := f.of.bound
	if f.of.soft && p.bin(b).keeps {
		span = math.MaxInt64
	}
	if s, ok := p.prof.EarliestOn(b, f.now, span, scheduler.Never, &f.of.need); ok {
		f.at[b], f.disk[b] = s.At, s.Disk
	}
}

func (f *finder) better(a, b int32) int32 {
	if f.at[a] < f.at[b] || (f.at[a] == f.at[b] && a <= b) {
		return a
	}
	return b
}

// changeLog is the bins of a profile in the order in which they changed: a ring,
// as whoever is too far behind looks at all of them.
type changeLog struct {
	ring []int32
	head uint64
}

func (l *changeLog) add(b int32, bins int) {
	if len(l.ring) < bins {
		size := 64
		for size < bins {
			size *= 2
		}
		l.ring, l.head = make([]int32, size), l.head+uint64(2*size) // all are behind
	}
	l.ring[l.head&uint64(len(l.ring)-1)] = b
	l.head++
}

// since lists the bins that changed since head stood at a place, in order, some of
// them more than once. False means that too much has happened: none was listed.
func (l *changeLog) since(at uint64, yield func(int32)) bool {
	if at > l.head || l.head-at > uint64(len(l.ring)) {
		return false
	}
	for ; at < l.head; at++ {
		yield(l.ring[at&uint64(len(l.ring)-1)])
	}
	return true
}
