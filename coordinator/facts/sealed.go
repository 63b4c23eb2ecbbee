package facts

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Limits of sealed tasks.
const (
	sealedVersion = 1       // of the encoding
	maxSealed     = 8 << 20 // bytes of the reports of one block; with more it is not sealed
	maxAttempts   = 1 << 16 // of one task, when decoded
)

// sealedTasks are the tasks of a block in which nothing is active any more, packed
// into some 100 bytes for each: a job of many short tasks must not occupy memory
// for those that ended. Tasks are decoded when they are read. Nodes' reports are
// compressed together, and decoded when one of them is read.
//
// The encoding is part of snapshots. heads is a version byte, the number of tasks up
// to the last that was tried, and each of these: its fields and those of its
// attempts as varints. reports is the
// DEFLATE stream of the attempts' reports, each with its length as a varint before
// it; an attempt knows its number among them.
type sealedTasks struct {
	heads   []byte
	at      []uint32 // offset of each task in heads
	reports []byte
	count   int // of reports

	opened atomic.Pointer[weak.Pointer[openReports]]
}

// openReports are the reports of a sealed block, each encoded.
type openReports struct{ of [][]byte }

var flateWriters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		panic(err) // only for an unknown level
	}
	return w
}}

// seal packs the tasks of a block; nil tasks were never tried. It returns nil if
// their reports are larger than maxSealed.
func seal(tasks *[chunkTasks]*Task) *sealedTasks {
	n := chunkTasks
	for n > 0 && tasks[n-1] == nil {
		n--
	}
	s := &sealedTasks{heads: binary.AppendUvarint([]byte{sealedVersion}, uint64(n)), at: make([]uint32, n)}
	var reports []byte
	for i, t := range tasks[:n] {
		s.at[i] = uint32(len(s.heads))
		if t == nil {
			t = untriedTask
		}
		s.heads = appendTask(s.heads, t)
		for _, a := range t.Attempts {
			number := 0
			if seen := a.Seen(); seen != nil {
				b, err := proto.MarshalOptions{Deterministic: true}.Marshal(seen)
				if err != nil || len(reports)+len(b) > maxSealed {
					return nil
				}
				reports = append(binary.AppendUvarint(reports, uint64(len(b))), b...)
				s.count++
				number = s.count
			}
			s.heads = appendAttempt(s.heads, a, number)
		}
	}
	var packed bytes.Buffer
	w := flateWriters.Get().(*flate.Writer)
	defer flateWriters.Put(w)
	w.Reset(&packed)
	if _, err := w.Write(reports); err != nil {
		return nil // a bytes.Buffer accepts everything
	}
	if err := w.Close(); err != nil {
		return nil
	}
	s.heads, s.reports = bytes.Clone(s.heads), bytes.Clone(packed.Bytes())
	return s
}

func appendTask(b []byte, t *Task) []byte {
	b = append(b, byte(t.State))
	for _, v := range [...]int32{t.Failures, t.InfraFailures, t.Winner, int32(len(t.Attempts))} {
		b = binary.AppendVarint(b, int64(v))
	}
	return b
}

// localities are those with a number of their own in the encoding; their order may
// not change.
var localities = [...]string{"", "none", "node", "rack", "remote"}

// appendAttempt appends an attempt whose report has that number, 0 for none.
func appendAttempt(b []byte, a *Attempt, report int) []byte {
	rest := attemptRest{Occupied: a.Occupied, Suspension: a.Suspension, Target: a.Target, Locality: a.Locality}
	place := byte(0)
	for i, l := range localities {
		if l == a.Locality {
			place, rest.Locality = byte(i), ""
		}
	}
	hasRest := !reflect.ValueOf(&rest).Elem().IsZero()
	flags := byte(0)
	for i, set := range [...]bool{a.Speculative, a.Retained, hasRest} {
		if set {
			flags |= 1 << i
		}
	}
	b = append(b, flags, place, byte(a.State))
	for _, v := range [...]int32{a.Attempt, a.Run, a.Node, a.Disk, int32(a.Level), int32(a.Cause()), int32(report)} {
		b = binary.AppendVarint(b, int64(v))
	}
	for _, v := range [...]int64{a.Placed, a.Ended - a.Placed, a.EstimateNS} {
		b = binary.AppendVarint(b, v)
	}
	for _, v := range [...]uint64{a.Epoch, a.Seq, a.EndSeq, a.LostSeq} {
		b = binary.AppendUvarint(b, v)
	}
	if !hasRest {
		return b
	}
	text, err := json.Marshal(rest)
	if err != nil {
		panic(err) // it has numbers and strings
	}
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// attemptRest are the fields that few attempts have when they end.
type attemptRest struct {
	Occupied   Amounts        `json:"occupied,omitzero"`
	Suspension Suspension     `json:"suspension,omitzero"`
	Target     droverv1.Level `json:"target,omitempty"`
	Locality   string         `json:"locality,omitempty"`
}

// attempt decodes one attempt of s.
func (d *packedReader) attempt(s *sealedTasks) *Attempt {
	flags, place := d.byte(), d.byte()
	a := &Attempt{Speculative: flags&1 != 0, Retained: flags&2 != 0, State: AttemptState(d.byte())}
	if int(place) >= len(localities) {
		d.failed = true
		return a
	}
	a.Locality = localities[place]
	a.Attempt, a.Run, a.Node, a.Disk = d.int32(), d.int32(), d.int32(), d.int32()
	a.Level, a.cause, a.report = droverv1.Level(d.int32()), droverv1.Cause(d.int32()), d.int32()
	if a.report > 0 {
		a.sealed = s
	}
	a.Placed = d.varint()
	a.Ended = a.Placed + d.varint()
	a.EstimateNS = d.varint()
	a.Epoch, a.Seq, a.EndSeq, a.LostSeq = d.uvarint(), d.uvarint(), d.uvarint(), d.uvarint()
	if flags&4 == 0 {
		return a
	}
	n := d.uvarint()
	if d.failed || n > uint64(len(d.b)-d.at) {
		d.failed = true
		return a
	}
	var rest attemptRest
	if err := json.Unmarshal(d.b[d.at:d.at+int(n)], &rest); err != nil {
		d.failed = true
		return a
	}
	d.at += int(n)
	a.Occupied, a.Suspension, a.Target = rest.Occupied, rest.Suspension, rest.Target
	if rest.Locality != "" {
		a.Locality = rest.Locality
	}
	return a
}

// restoreSealed checks what a snapshot says of a block and returns it.
func restoreSealed(heads, reports []byte) (*sealedTasks, error) {
	if len(heads) == 0 || heads[0] != sealedVersion {
		return nil, fmt.Errorf("sealed tasks of an unknown version")
	}
	s := &sealedTasks{heads: heads, reports: reports}
	d := &packedReader{b: heads, at: 1}
	n := d.uvarint()
	if n > chunkTasks {
		return nil, fmt.Errorf("%d sealed tasks in a block of %d", n, chunkTasks)
	}
	s.at = make([]uint32, n)
	for i := range s.at {
		s.at[i] = uint32(d.at)
		t := s.readTask(d)
		for _, a := range t.Attempts {
			if a.report != 0 {
				s.count++
				d.failed = d.failed || int(a.report) != s.count
			}
		}
		if d.failed {
			return nil, fmt.Errorf("sealed tasks end in task %d", i)
		}
	}
	if d.at != len(heads) {
		return nil, fmt.Errorf("%d bytes after the sealed tasks", len(heads)-d.at)
	}
	o, err := s.open()
	if err != nil {
		return nil, err
	}
	for i := range o.of {
		if err := proto.Unmarshal(o.of[i], new(droverv1.SeenAttempt)); err != nil {
			return nil, fmt.Errorf("sealed report %d: %w", i, err)
		}
	}
	return s, nil
}

// task returns the i-th task. What seal and restoreSealed made can be read.
func (s *sealedTasks) task(i int32) *Task {
	if int(i) >= len(s.at) {
		return untriedTask
	}
	return s.readTask(&packedReader{b: s.heads, at: int(s.at[i])})
}

// all returns all tasks, nil for those that were never tried.
func (s *sealedTasks) all() *[chunkTasks]*Task {
	var out [chunkTasks]*Task
	for i := range s.at {
		if t := s.task(int32(i)); len(t.Attempts) > 0 || t.State != TaskPending {
			out[i] = t
		}
	}
	return &out
}

func (s *sealedTasks) readTask(d *packedReader) *Task {
	t := &Task{State: TaskState(d.byte())}
	t.Failures, t.InfraFailures, t.Winner = d.int32(), d.int32(), d.int32()
	n := d.int32()
	if d.failed || n < 0 || n > maxAttempts || int(n) > len(d.b)-d.at {
		d.failed = true
		return t
	}
	if n > 0 {
		t.Attempts = make([]*Attempt, 0, n)
	}
	for range n {
		a := d.attempt(s)
		if d.failed {
			return t
		}
		t.Attempts = append(t.Attempts, a)
	}
	return t
}

// report returns the n-th report, counted from 1.
func (s *sealedTasks) report(n int32) *droverv1.SeenAttempt {
	o, err := s.open()
	if err != nil {
		panic(err) // restoreSealed has opened it, or seal has made it
	}
	seen := new(droverv1.SeenAttempt)
	if err := proto.Unmarshal(o.of[n-1], seen); err != nil {
		panic(err)
	}
	return seen
}

// open decompresses the reports, unless the garbage collector has left those that
// an earlier call decompressed.
func (s *sealedTasks) open() (*openReports, error) {
	if w := s.opened.Load(); w != nil {
		if o := w.Value(); o != nil {
			return o, nil
		}
	}
	r := flate.NewReader(bytes.NewReader(s.reports))
	raw, err := io.ReadAll(io.LimitReader(r, 2*maxSealed))
	if err != nil {
		return nil, fmt.Errorf("sealed reports: %w", err)
	}
	o := &openReports{of: make([][]byte, 0, s.count)}
	for len(raw) > 0 {
		size, n := binary.Uvarint(raw)
		if n <= 0 || size > uint64(len(raw)-n) {
			return nil, fmt.Errorf("sealed report %d is cut short", len(o.of))
		}
		o.of = append(o.of, raw[n:n+int(size)])
		raw = raw[n+int(size):]
	}
	if len(o.of) != s.count {
		return nil, fmt.Errorf("%d sealed reports, the tasks have %d", len(o.of), s.count)
	}
	w := weak.Make(o)
	s.opened.Store(&w)
	return o, nil
}

// packedReader decodes what appendTask and appendAttempt wrote. After an error
// everything it returns is zero.
type packedReader struct {
	b      []byte
	at     int
	failed bool
}

func (d *packedReader) byte() byte {
	if d.failed || d.at >= len(d.b) {
		d.failed = true
		return 0
	}
	d.at++
	return d.b[d.at-1]
}

func (d *packedReader) varint() int64 {
	if d.failed {
		return 0
	}
	v, n := binary.Varint(d.b[d.at:])
	return advance(d, v, n)
}

func (d *packedReader) uvarint() uint64 {
	if d.failed {
		return 0
	}
	v, n := binary.Uvarint(d.b[d.at:])
	return advance(d, v, n)
}

func advance[T int64 | uint64](d *packedReader, v T, n int) T {
	if n <= 0 {
		d.failed = true
		return 0
	}
	d.at += n
	return v
}

func (d *packedReader) int32() int32 {
	v := d.varint()
	if int64(int32(v)) != v {
		d.failed = true
	}
	return int32(v)
}

// task returns the i-th task of the block, nil if it was never tried.
func (c *chunk) task(i int32) *Task {
	if c.sealed != nil {
		return c.sealed.task(i)
	}
	return c.tasks[i]
}

// each calls fn for the tasks that were tried, in order.
func (c *chunk) each(fn func(i int, t *Task)) {
	tasks := c.tasks
	if c.sealed != nil {
		tasks = c.sealed.all()
	}
	for i, t := range tasks {
		if t != nil {
			fn(i, t)
		}
	}
}

// writable returns the block for writing in a generation: a copy if a snapshot
// still reads it, and not sealed.
func (c *chunk) writable(gen uint64) *chunk {
	switch {
	case c == nil:
		return &chunk{gen: gen, tasks: new([chunkTasks]*Task)}
	case c.sealed != nil:
		return &chunk{gen: gen, tasks: c.sealed.all()}
	case c.gen != gen:
		tasks := *c.tasks
		return &chunk{gen: gen, tasks: &tasks}
	default:
		return c
	}
}

// isFinished reports whether the first n tasks of the block are done and none has
// an active attempt.
func (c *chunk) isFinished(n int) bool {
	for _, t := range c.tasks[:n] {
		if t == nil || t.State != TaskDone || hasActiveAttempt(t) {
			return false
		}
	}
	return true
}

// sealFinished seals the block of a task if everything in it has ended. The job
// came from writableJob.
func (w writer) sealFinished(j *Job, stage, task int32) {
	s := &j.Stages[stage]
	i := task / chunkTasks
	c := s.chunks[i]
	if c == nil || c.sealed != nil || !c.isFinished(min(chunkTasks, int(s.Tasks-i*chunkTasks))) {
		return
	}
	w.sealChunk(s, i)
}

// sealJob seals all tasks of an ended job without active attempts. The job came
// from writableJob.
func (w writer) sealJob(j *Job) {
	for i := range j.Stages {
		s := &j.Stages[i]
		for k, c := range s.chunks {
			if c != nil && c.sealed == nil {
				w.sealChunk(s, int32(k))
			}
		}
	}
}

func (w writer) sealChunk(s *Stage, i int32) {
	if packed := seal(s.chunks[i].tasks); packed != nil {
		s.chunks[i] = &chunk{gen: w.f.gen, sealed: packed}
	}
}
