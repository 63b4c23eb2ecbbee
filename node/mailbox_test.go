package node

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func newTestMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), inbox: make(chan func()), seen: &droverv1.SeenAttempt{Phase: running}}
}

// An attempt that rests misses no change: either it sees the change, or the one who made it starts a loop.
func TestRestingAttemptMissesNothing(t *testing.T) {
	m := newTestMailbox()
	const changes = 2000
	var made, seen atomic.Int64 // changes
	var wg sync.WaitGroup
	done := make(chan struct{})
	var looping sync.Mutex // one loop at a time, as in attempt.startLoop
	loop := func() {
		wg.Go(func() {
			looping.Lock()
			defer looping.Unlock()
			for {
				if seen.Store(made.Load()); seen.Load() == changes {
					close(done)
					return
				}
				if m.tryRest() {
					return
				}
				m.sleep(t.Context(), 0)
			}
		})
	}
	loop()
	for range changes {
		made.Add(1)
		if m.notify() {
			loop()
		}
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d changes were seen", seen.Load(), changes)
	}
	wg.Wait()
}

func TestMailboxPublish(t *testing.T) {
	m := newTestMailbox()
	for name, c := range map[string]struct {
		next            *droverv1.SeenAttempt
		changed, atOnce bool
	}{
		"the same":     {&droverv1.SeenAttempt{Phase: running}, false, false},
		"more time":    {&droverv1.SeenAttempt{Phase: running, RunningMs: 5}, true, false},
		"another end":  {&droverv1.SeenAttempt{Phase: failed}, true, true},
		"a new status": {&droverv1.SeenAttempt{Phase: running, Status: "s"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			m.publish(&droverv1.SeenAttempt{Phase: running}, nil)
			d := &servableDump{}
			if changed, atOnce := m.publish(c.next, d); changed != c.changed || atOnce != c.atOnce {
				t.Errorf("changed %v, at once %v", changed, atOnce)
			}
			if m.servedDump() != d {
				t.Error("the dump is not served")
			}
			if alive := m.isAlive(); alive != (c.next.GetPhase() == running) {
				t.Errorf("alive %v", alive)
			}
		})
	}
}

// An attempt that must go keeps the spec by which it is removed.
func TestMailboxKeepsSpec(t *testing.T) {
	m := newTestMailbox()
	spec := &droverv1.TaskSpec{JobName: "j", Image: &droverv1.ImageRef{Digest: "d"}}
	m.want(&droverv1.WantedAttempt{Spec: spec})
	m.want(&droverv1.WantedAttempt{})
	m.want(nil)
	if w, s := m.wantedAndSpec(); w != nil || s != spec {
		t.Errorf("wanted %v, spec %v", w, s)
	}
	if m.liveImage().GetDigest() != "d" {
		t.Error("a live attempt needs its image")
	}
}

// Calls run in the loop, during its pauses too; those of a loop that ended are dropped.
func TestMailboxCalls(t *testing.T) {
	m := newTestMailbox()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	ran := 0 // without a lock: this goroutine is the loop
	wg.Go(func() {
		m.post(ctx, func() { ran++ })
		m.post(ctx, func() { ran++ })
		m.notify()
	})
	m.sleep(ctx, 0)
	m.pause(ctx, time.Hour) // until it is notified
	wg.Wait()
	if ran != 2 {
		t.Errorf("%d calls ran", ran)
	}
	cancel()
	m.post(ctx, func() { t.Error("a call after the end") })
	m.sleep(t.Context(), time.Millisecond)
}

// A report differs, and differs in what is sent at once, exactly as copies of both without their usage say.
func TestCompareReports(t *testing.T) {
	withoutUsage := func(s *droverv1.SeenAttempt) *droverv1.SeenAttempt {
		c := proto.CloneOf(s)
		c.Usage, c.Occupied, c.SwapOccupied, c.DiskOccupied, c.RunningMs = nil, nil, 0, 0, 0
		c.FetchingMs, c.CommittingMs = 0, 0
		c.Progress, c.Counters, c.Status, c.InputBytes = 0, nil, "", 0
		c.Step = ""
		if c.GetPhase() < droverv1.Phase_PHASE_SUCCEEDED {
			c.Message = ""
		}
		return c
	}
	for _, phase := range []droverv1.Phase{droverv1.Phase_PHASE_PREPARING, running, droverv1.Phase_PHASE_SUCCEEDED, droverv1.Phase_PHASE_FAILED} {
		last := &droverv1.SeenAttempt{Phase: phase}
		nexts := []*droverv1.SeenAttempt{proto.CloneOf(last), {Phase: running}, {Phase: droverv1.Phase_PHASE_FAILED}}
		fields := last.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if f.Name() == "phase" || f.Name() == "elsewhere" { // the latter is the coordinator's to set
				continue
			}
			next := proto.CloneOf(last)
			r := next.ProtoReflect()
			switch {
			case f.IsList(), f.IsMap():
				r.Mutable(f) // empty: no difference
				nexts = append(nexts, proto.CloneOf(next))
				if f.IsList() {
					r.Mutable(f).List().Append(r.Mutable(f).List().NewElement())
				} else {
					r.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), r.Mutable(f).Map().NewValue())
				}
			case f.Message() != nil:
				r.Mutable(f)
			case f.Kind() == protoreflect.StringKind:
				r.Set(f, protoreflect.ValueOfString("text"))
			default:
				r.Set(f, nonZero(f))
			}
			nexts = append(nexts, next)
		}
		for _, next := range nexts {
			for _, pair := range [][2]*droverv1.SeenAttempt{{last, next}, {next, last}, {next, proto.CloneOf(next)}} {
				wantChanged := !proto.Equal(pair[0], pair[1])
				wantAtOnce := !proto.Equal(withoutUsage(pair[0]), withoutUsage(pair[1]))
				if changed, atOnce := compareReports(pair[0], pair[1]); changed != wantChanged || atOnce != wantAtOnce {
					t.Errorf("%v then %v: changed %v at once %v, want %v %v", pair[0], pair[1], changed, atOnce, wantChanged, wantAtOnce)
				}
			}
		}
	}
}

// nonZero returns a value of a number, bool, enum or bytes field that is not its default.
func nonZero(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("b"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(1).Number())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	default:
		return protoreflect.ValueOfInt64(1)
	}
}
