package facts

import (
	"reflect"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestWhatANodeCouldNotDo(t *testing.T) {
	const running, frozen, swapped, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED
	for name, c := range map[string]struct {
		stays, asked droverv1.Level
		want         []droverv1.Level
	}{
		"frozen, not swapped":                  {frozen, swapped, []droverv1.Level{swapped}},
		"frozen, not checkpointed":             {frozen, checkpointed, []droverv1.Level{swapped, checkpointed}},
		"swapped, not checkpointed":            {swapped, checkpointed, []droverv1.Level{checkpointed}},
		"what cannot be frozen can do nothing": {running, frozen, []droverv1.Level{frozen, swapped, checkpointed}},
	} {
		want := uint8(0)
		for _, l := range c.want {
			want |= 1 << l
		}
		if got := barredBy(c.stays, c.asked); got != want {
			t.Errorf("%s: %b, want %b", name, got, want)
		}
	}
}

// A refusal bars levels: for good where the node says so, else for a while that
// doubles each time in a row. What is reached after all is barred no more.
func TestHowLongALevelStaysRefused(t *testing.T) {
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
		"for a minute, where nothing is said": {Suspension{}, func(s *Suspension) { s.bar(set(swapped, checkpointed), nil, now) },
			Suspension{Passing: set(swapped, checkpointed), Back: now + minute, Passed: 1}},
		"for good": {Suspension{}, func(s *Suspension) { s.bar(set(checkpointed), []droverv1.Level{checkpointed}, now) },
			Suspension{Barred: set(checkpointed)}},
		"one for good, one for a minute": {Suspension{}, func(s *Suspension) { s.bar(set(swapped, checkpointed), []droverv1.Level{checkpointed}, now) },
			Suspension{Barred: set(checkpointed), Passing: set(swapped), Back: now + minute, Passed: 1}},
		"what was for a while turns out to be for good": {Suspension{Passing: set(swapped), Back: 5, Passed: 1}, func(s *Suspension) { s.bar(set(swapped), []droverv1.Level{swapped}, now) },
			Suspension{Barred: set(swapped), Passed: 1}},
		"what was not refused is not barred": {Suspension{}, func(s *Suspension) {
			s.bar(set(swapped), []droverv1.Level{running, frozen, checkpointed, 77, -1}, now)
		}, Suspension{Passing: set(swapped), Back: now + minute, Passed: 1}},
		"the third time for four minutes": {Suspension{Passed: 2}, func(s *Suspension) { s.bar(set(swapped), nil, now) },
			Suspension{Passing: set(swapped), Back: now + 4*minute, Passed: 3}},
		"another level within the while": {Suspension{Passing: set(swapped), Back: now + 5, Passed: 1}, func(s *Suspension) { s.bar(set(checkpointed), nil, now) },
			Suspension{Passing: set(swapped, checkpointed), Back: now + minute, Passed: 1}},
		"within the while, after a level above it was reached": {Suspension{Passing: set(checkpointed), Back: now + 5}, func(s *Suspension) { s.bar(set(checkpointed), nil, now) },
			Suspension{Passing: set(checkpointed), Back: now + minute, Passed: 1}},
		"never for more than half an hour": {Suspension{Passed: 1000}, func(s *Suspension) { s.bar(set(swapped), nil, now) },
			Suspension{Passing: set(swapped), Back: now + 30*minute, Passed: 1001}},
		"reached": {Suspension{Barred: set(checkpointed), Passing: set(frozen, swapped), Back: 5, Passed: 3}, func(s *Suspension) { s.reached(swapped) },
			Suspension{Barred: set(checkpointed)}},
		"a level above it was reached": {Suspension{Passing: set(swapped, checkpointed), Back: 5, Passed: 3}, func(s *Suspension) { s.reached(swapped) },
			Suspension{Passing: set(checkpointed), Back: 5}},
	} {
		got := c.had
		c.do(&got)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The entry that ends the while counts from the time in the log.
func TestAWhileEndsByAnEntryAndNotBefore(t *testing.T) {
	w := newWard(t)
	w.f.Node(1).Info.Levels = []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_CHECKPOINTED}
	k, why := w.place()
	if why != "" {
		t.Fatal(why)
	}
	a := w.f.Attempt(k)
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{
		{Kind: int32(ActSuspend), Key: k.Proto(a.Run), Level: droverv1.Level_LEVEL_CHECKPOINTED}}}}})
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: a.Node, Epoch: a.Epoch, Seen: []*droverv1.SeenAttempt{{Key: k.Proto(a.Run),
		Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_FROZEN, LevelRefused: droverv1.Level_LEVEL_CHECKPOINTED, Held: &droverv1.Resources{}}}}}})
	if s := w.f.Attempt(k).Sus; s.Bars() == 0 || s.Back == 0 {
		t.Fatalf("after the refusal: %+v", s)
	}
	over := &droverv1.Entry{Body: &droverv1.Entry_BarsPassed{BarsPassed: &droverv1.BarsPassedFact{Attempts: []*droverv1.AttemptKey{k.Proto(a.Run), k.Proto(a.Run + 1)}}}}
	if r := w.apply(over); len(r.Dropped) != 2 || w.f.Attempt(k).Sus.Bars() == 0 {
		t.Errorf("too early: %+v, %+v", r, w.f.Attempt(k).Sus)
	}
	w.at += BarFirst
	if r := w.apply(over); len(r.Dropped) != 1 || r.Changed != 1 || w.f.Attempt(k).Sus.Bars() != 0 {
		t.Errorf("in time: %+v, %+v", r, w.f.Attempt(k).Sus)
	}
	if r := w.apply(over); len(r.Dropped) != 2 {
		t.Errorf("twice: %+v", r)
	}
}
