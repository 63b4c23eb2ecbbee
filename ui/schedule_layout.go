package ui

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"slices"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// partBars is how many bars a part of the picture has, unless one lane has more:
// a picture of thousands of rows is read in parts, those that are in view.
const partBars = 1500

// scheduleBar is an attempt in the picture.
type scheduleBar struct {
	*droverv1.ScheduleAttempt
	row, lane int
}

// scheduleLayout is a schedule arranged for its picture: each attempt has a lane
// of its row that is free. It is shared and never changed.
type scheduleLayout struct {
	plan   *droverv1.GetScheduleResponse
	index  *scheduleIndex
	data   *scheduleData
	list   []scheduleBar // by row, lane and time
	starts []int         // in list, of each part
	digest string        // changes when the picture does, not because time passes
}

// layout returns the arranged schedule that the request is about. It is computed
// once for all readers with the same rights.
func (q *query) layout() (*scheduleLayout, error) {
	by, err := choose(q.values, "by", scheduleBys...)
	if err != nil {
		return nil, err
	}
	req := q.scheduleRequest()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return nil, err
	}
	v, err := q.shared.get(q.ctx, q.rights+"\x00layout\x00"+by+"\x00"+string(text), func(ctx context.Context) (any, error) {
		of := *q.source
		of.ctx = ctx // it outlives the one who asks first
		plan, err := of.schedule(req)
		if err != nil {
			return nil, err
		}
		return newScheduleLayout(plan, by), nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*scheduleLayout), nil
}

// newScheduleLayout arranges a schedule by node, rack, job or tenant. O(n log n) in its
// attempts.
func newScheduleLayout(p *droverv1.GetScheduleResponse, by string) *scheduleLayout {
	l := &scheduleLayout{plan: p, index: newScheduleIndex(p)}
	data, rowOf := newScheduleData(p, l.index, by)
	l.data = data
	for _, a := range p.GetAttempts() {
		if row := rowOf(a.GetNode(), a.GetKey().GetJob()); row >= 0 {
			l.list = append(l.list, scheduleBar{ScheduleAttempt: a, row: row})
			if data.First == 0 || a.GetPlacedMs() < data.First {
				data.First = a.GetPlacedMs()
			}
		}
	}
	slices.SortStableFunc(l.list, func(a, b scheduleBar) int {
		return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.GetPlacedMs(), b.GetPlacedMs()))
	})
	for from := 0; from < len(l.list); {
		to := from
		for to < len(l.list) && l.list[to].row == l.list[from].row {
			to++
		}
		data.Rows[l.list[from].row].Lanes = assignLanes(l.list[from:to], max(p.GetUntilMs(), p.GetNowMs()))
		from = to
	}
	slices.SortStableFunc(l.list, func(a, b scheduleBar) int { return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.lane, b.lane)) })
	l.divide()
	l.sign()
	return l
}

// laneEnd says when a lane becomes free.
type laneEnd struct {
	end  int64
	lane int
}

// laneHeap has the lane first that becomes free first, and of several the lowest.
type laneHeap []laneEnd

func (h laneHeap) Len() int { return len(h) }
func (h laneHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].end, h[j].end), cmp.Compare(h[i].lane, h[j].lane)) < 0
}
func (h laneHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push adds a laneEnd, for container/heap.
func (h *laneHeap) Push(v any) { *h = append(*h, v.(laneEnd)) }

// Pop removes the last one, for container/heap.
func (h *laneHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// assignLanes gives each bar of a row, oldest first, the lowest lane that is free
// when it was placed, and returns how many lanes there are. O(n log n).
func assignLanes(row []scheduleBar, horizon int64) int {
	busy, free, n := &laneHeap{}, &laneHeap{}, 0
	for i := range row {
		b := &row[i]
		for busy.Len() > 0 && (*busy)[0].end <= b.GetPlacedMs() {
			heap.Push(free, laneEnd{lane: heap.Pop(busy).(laneEnd).lane})
		}
		if free.Len() > 0 {
			b.lane = heap.Pop(free).(laneEnd).lane
		} else {
			b.lane = n
			n++
		}
		heap.Push(busy, laneEnd{cmp.Or(b.GetEndMs(), horizon), b.lane})
	}
	return max(n, 1)
}

// divide makes parts of whole lanes.
func (l *scheduleLayout) divide() {
	for i := range l.list {
		b := &l.list[i]
		fresh := i == 0 || b.row != l.list[i-1].row || b.lane != l.list[i-1].lane
		if i == 0 || fresh && i-l.starts[len(l.starts)-1] >= partBars {
			at := schedulePart{b.row, b.lane}
			if i == 0 {
				at = schedulePart{}
			}
			l.starts, l.data.Parts = append(l.starts, i), append(l.data.Parts, at)
		}
	}
}

// sign computes the digests of the rows and of the picture. Expected ends count by
// what can be seen of them.
func (l *scheduleLayout) sign() {
	d := *l.data
	d.Now, d.From, d.Until = 0, 0, 0 // that time passes is no change
	d.Ending = nil
	rows, err := json.Marshal(d.Rows)
	if err != nil {
		panic(err) // the types of this package can be encoded
	}
	l.data.Version = digest(rows)[:12]
	h := fnv.New128a()
	if err := json.NewEncoder(h).Encode(&d); err != nil {
		panic(err) // as above
	}
	seen := int64(1) // the least power of two that is half a pixel
	for seen*2000 < l.data.Until-l.data.From {
		seen *= 2
	}
	var buf []byte
	for i := range l.list {
		b := &l.list[i]
		k, end := b.GetKey(), b.GetEndMs()
		if b.GetExpected() {
			end /= seen
		}
		buf = buf[:0]
		for _, v := range [...]int64{int64(b.row), int64(b.lane), int64(k.GetJob()), int64(k.GetStage()), int64(k.GetTask()), int64(k.GetRun()), b.GetPlacedMs(), end, int64(b.GetLevel()), int64(len(b.GetGaps()))} {
			buf = binary.AppendVarint(buf, v)
		}
		_, _ = h.Write(append(buf, b.GetState()...)) // never fails
	}
	l.digest = hex.EncodeToString(h.Sum(nil))
}

// first returns the data with the bars at the top.
func (l *scheduleLayout) first() *scheduleData {
	d := *l.data
	if len(l.starts) > 0 {
		d.Bars = []*scheduleBars{l.bars(0, window{})}
	}
	return &d
}

// whole returns the data with all bars, each by itself.
func (l *scheduleLayout) whole() *scheduleData {
	d := *l.data
	for i := range l.starts {
		b := &scheduleBars{Version: d.Version, Gaps: map[int][]int64{}}
		for _, bar := range l.part(i) {
			b.add(l.index, &bar)
		}
		d.Bars = append(d.Bars, b)
	}
	return &d
}

// part returns the bars of a part, none if there is no such part.
func (l *scheduleLayout) part(i int) []scheduleBar {
	switch {
	case i < 0 || i >= len(l.starts):
		return nil
	case i+1 < len(l.starts):
		return l.list[l.starts[i]:l.starts[i+1]]
	default:
		return l.list[l.starts[i]:]
	}
}

// window is a time of the schedule, Unix ms. The zero value is all of it.
type window struct{ from, to int64 }

// newWindow returns the window between two times, all of the schedule if they are
// in the wrong order.
func newWindow(from, to int64) window {
	if from <= 0 || to <= from {
		return window{}
	}
	return window{from, to}
}

// screen is how many pixels wide a picture is taken to be: what is narrower than one
// of them is drawn together with its neighbours.
const screen = 1000

// bars returns the bars of a part that are in a window. Ended attempts that would be
// narrower than a pixel are one bar.
func (l *scheduleLayout) bars(part int, in window) *scheduleBars {
	out := &scheduleBars{Version: l.data.Version, From: in.from, To: in.to, Gaps: map[int][]int64{}, Count: map[int]int{}}
	span := in.to - in.from
	if in == (window{}) {
		span = l.data.Until - min(cmp.Or(l.data.First, l.data.From), l.data.Until)
	}
	pixel := span / screen
	list := l.part(part)
	for i := 0; i < len(list); i++ {
		b := &list[i]
		if in.to > 0 && (b.GetPlacedMs() > in.to || !b.GetExpected() && b.GetEndMs() < in.from) {
			continue
		}
		n := thin(list[i:], pixel)
		out.add(l.index, b)
		if n > 1 {
			out.merge(list[i:i+n], l.index)
			i += n - 1
		}
	}
	return out
}

// thin returns how many bars at the beginning of a list are one bar, each narrower
// than a pixel and less than one after the last.
func thin(list []scheduleBar, pixel int64) int {
	narrow := func(b *scheduleBar) bool {
		return !b.GetExpected() && len(b.GetGaps()) == 0 && b.GetEndMs()-b.GetPlacedMs() < pixel
	}
	n := 1
	for narrow(&list[0]) && n < len(list) && list[n].row == list[0].row && list[n].lane == list[0].lane && narrow(&list[n]) && list[n].GetPlacedMs()-list[n-1].GetEndMs() < pixel {
		n++
	}
	return n
}

func (s *scheduleBars) add(x *scheduleIndex, b *scheduleBar) {
	for _, g := range b.GetGaps() {
		s.Gaps[len(s.Row)] = append(s.Gaps[len(s.Row)], g.GetFromMs(), g.GetToMs())
	}
	s.Row, s.Lane = append(s.Row, b.row), append(s.Lane, b.lane)
	s.Job, s.Task = append(s.Job, x.position(b.GetKey().GetJob())), append(s.Task, x.taskName(b.GetKey()))
	s.State = append(s.State, attemptState(b.ScheduleAttempt))
	s.Placed, s.End = append(s.Placed, b.GetPlacedMs()), append(s.End, b.GetEndMs())
}

// merge makes the last bar stand for a list that begins with it. One that failed
// shows.
func (s *scheduleBars) merge(list []scheduleBar, x *scheduleIndex) {
	last := len(s.Row) - 1
	s.Merged, s.Count[last], s.End[last], s.Task[last] = true, len(list), list[len(list)-1].GetEndMs(), ""
	for i := range list {
		if x.position(list[i].GetKey().GetJob()) != s.Job[last] {
			s.Job[last] = -1
		}
		switch state := attemptState(list[i].ScheduleAttempt); {
		case state == s.State[last]:
		case state == "failed" || s.State[last] == "succeeded":
			s.State[last] = state
		}
	}
}
