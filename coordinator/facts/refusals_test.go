package facts

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

func TestRefusedLevels(t *testing.T) {
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		stays, asked droverv1.Level
		want         []droverv1.Level
	}{
		"frozen, not swapped":                 {frozen, swapped, []droverv1.Level{swapped}},
		"frozen, not checkpointed":            {frozen, checkpointed, []droverv1.Level{swapped, checkpointed}},
		"swapped, not checkpointed":           {swapped, checkpointed, []droverv1.Level{checkpointed}},
		"without frozen no level is possible": {running, frozen, []droverv1.Level{frozen, swapped, checkpointed}},
	} {
		want := uint8(0)
		for _, l := range c.want {
			want |= 1 << l
		}
		if got := impliedRefusals(c.stays, c.asked); got != want {
			t.Errorf("%s: %b, want %b", name, got, want)
		}
	}
}

// TestRefusalBackoff checks that a refusal is permanent if the node says so,
// and otherwise lasts for a back-off that doubles each time in a row, and that
// a level that was reached after all is refused no more.
func TestRefusalBackoff(t *testing.T) {
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	set := func(ls ...droverv1.Level) (n uint8) {
		for _, l := range ls {
			n |= 1 << l
		}
		return n
	}
	const now, minute = 1000, int64(time.Minute)
	for name, c := range map[string]struct {
		had  Suspension
		do   func(*Suspension)
		want Suspension
	}{
		"transient by default": {Suspension{}, func(s *Suspension) { s.recordRefusal(set(swapped, checkpointed), nil, now) },
			Suspension{TransientRefused: set(swapped, checkpointed), RetryAt: now + minute, RefusalStreak: 1}},
		"permanent": {Suspension{}, func(s *Suspension) { s.recordRefusal(set(checkpointed), []droverv1.Level{checkpointed}, now) },
			Suspension{RefusedLevels: set(checkpointed)}},
		"one permanent, one transient": {Suspension{}, func(s *Suspension) { s.recordRefusal(set(swapped, checkpointed), []droverv1.Level{checkpointed}, now) },
			Suspension{RefusedLevels: set(checkpointed), TransientRefused: set(swapped), RetryAt: now + minute, RefusalStreak: 1}},
		"a transient refusal becomes permanent": {Suspension{TransientRefused: set(swapped), RetryAt: 5, RefusalStreak: 1}, func(s *Suspension) { s.recordRefusal(set(swapped), []droverv1.Level{swapped}, now) },
			Suspension{RefusedLevels: set(swapped), RefusalStreak: 1}},
		"other levels are not refused": {Suspension{}, func(s *Suspension) {
			s.recordRefusal(set(swapped), []droverv1.Level{running, frozen, checkpointed, 77, -1}, now)
		}, Suspension{TransientRefused: set(swapped), RetryAt: now + minute, RefusalStreak: 1}},
		"the third in a row lasts four minutes": {Suspension{RefusalStreak: 2}, func(s *Suspension) { s.recordRefusal(set(swapped), nil, now) },
			Suspension{TransientRefused: set(swapped), RetryAt: now + 4*minute, RefusalStreak: 3}},
		"another level during the back-off": {Suspension{TransientRefused: set(swapped), RetryAt: now + 5, RefusalStreak: 1}, func(s *Suspension) { s.recordRefusal(set(checkpointed), nil, now) },
			Suspension{TransientRefused: set(swapped, checkpointed), RetryAt: now + minute, RefusalStreak: 1}},
		"during the back-off, after an earlier level was reached": {Suspension{TransientRefused: set(checkpointed), RetryAt: now + 5}, func(s *Suspension) { s.recordRefusal(set(checkpointed), nil, now) },
			Suspension{TransientRefused: set(checkpointed), RetryAt: now + minute, RefusalStreak: 1}},
		"at most half an hour": {Suspension{RefusalStreak: 1000}, func(s *Suspension) { s.recordRefusal(set(swapped), nil, now) },
			Suspension{TransientRefused: set(swapped), RetryAt: now + 30*minute, RefusalStreak: 1001}},
		"reached": {Suspension{RefusedLevels: set(checkpointed), TransientRefused: set(frozen, swapped), RetryAt: 5, RefusalStreak: 3}, func(s *Suspension) { s.recordReached(swapped) },
			Suspension{RefusedLevels: set(checkpointed)}},
		"an earlier level was reached": {Suspension{TransientRefused: set(swapped, checkpointed), RetryAt: 5, RefusalStreak: 3}, func(s *Suspension) { s.recordReached(swapped) },
			Suspension{TransientRefused: set(checkpointed), RetryAt: 5}},
	} {
		got := c.had
		c.do(&got)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestBackoffEndsByEntry checks that a back-off ends by an entry, and by the
// log's time.
func TestBackoffEndsByEntry(t *testing.T) {
	w := newNodeFixture(t)
	w.f.Node(1).Info.Levels = []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_CHECKPOINTED}
	k, why := w.place()
	if why != "" {
		t.Fatal(why)
	}
	a := w.f.Attempt(k)
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{
		{Kind: int32(ActSuspend), Key: k.Proto(a.Run), Level: droverv1.Level_LEVEL_CHECKPOINTED}}}}})
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: a.Node, Epoch: a.Epoch, Seen: []*droverv1.SeenAttempt{{Key: k.Proto(a.Run),
		Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_FROZEN, TargetRefused: droverv1.Level_LEVEL_CHECKPOINTED, Occupied: &droverv1.Resources{}}}}}})
	if s := w.f.Attempt(k).Suspension; s.Refused() == 0 || s.RetryAt == 0 {
		t.Fatalf("after the refusal: %+v", s)
	}
	expired := &droverv1.Entry{Body: &droverv1.Entry_RefusalsExpired{RefusalsExpired: &droverv1.RefusalsExpiredFact{Attempts: []*droverv1.AttemptKey{k.Proto(a.Run), k.Proto(a.Run + 1)}}}}
	if r := w.apply(expired); len(r.Dropped) != 2 || w.f.Attempt(k).Suspension.Refused() == 0 {
		t.Errorf("too early: %+v, %+v", r, w.f.Attempt(k).Suspension)
	}
	w.clock += RefusalBackoffMin
	if r := w.apply(expired); len(r.Dropped) != 1 || r.Changed != 1 || w.f.Attempt(k).Suspension.Refused() != 0 {
		t.Errorf("in time: %+v, %+v", r, w.f.Attempt(k).Suspension)
	}
	if r := w.apply(expired); len(r.Dropped) != 2 {
		t.Errorf("twice: %+v", r)
	}
}

// Who is refused at a limit of the cluster reads what to do. The text is an answer to who asked: no part of the facts, which
// stay those of servers with other texts.
func TestRefusalsAtLimitsSayWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		fill  func(*Facts)
		entry *droverv1.Entry
		want  string
	}{
		"nodes": {func(f *Facts) {
			for i := range maxNodes {
				f.nodes = append(f.nodes, &Node{ID: int32(i) + 1, Info: &droverv1.NodeInfo{}})
			}
		}, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: "n"}}}}, "give the machine the name of one that is gone"},
		"files": {func(f *Facts) {
			for i := range maxBlobs {
				f.blobs[fmt.Sprint(i)] = &Blob{Digest: fmt.Sprint(i)}
			}
		}, &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: "d", Size: 1}}}, "a file goes an hour after"},
	} {
		f := New()
		c.fill(f)
		c.entry.Version = EntryVersion
		r := f.Apply(0, c.entry)
		if !errors.Is(r.Err, fault.Exhausted) || !strings.Contains(r.Err.Error(), c.want) {
			t.Errorf("%s: %v", name, r.Err)
		}
		if strings.Contains(dump(t, f), c.want) {
			t.Errorf("%s: the text is in the facts", name)
		}
	}
}
