package ui

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An answer is shared for long if it took long twice: one that waited, for a new leader for instance,
// is asked for again soon.
func TestWhatWaitedIsNotSharedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShared()
		calls := 0
		ask := func(takes time.Duration, err error) {
			_, _ = s.get(t.Context(), "key", func(context.Context) (any, error) {
				calls++
				time.Sleep(takes)
				return calls, err
			})
		}
		for i, step := range []struct {
			takes  time.Duration
			err    error
			shared time.Duration // for how long the answer is good
		}{
			{3 * time.Second, nil, shareLeast},                 // there is nothing to compare it with
			{10 * time.Millisecond, nil, shareLeast},           // that was no cost
			{3 * time.Second, nil, shareLeast},                 // a wait
			{time.Second, errors.New("no leader"), shareLeast}, // neither is a failure
			{3 * time.Second, nil, shareLeast},                 // a wait after a failure
			{100 * time.Millisecond, nil, 5 * time.Second},     // what waited longer before costs this much
			{2 * time.Second, nil, 5 * time.Second},            // a wait
			{2 * time.Second, nil, shareMost},                  // this is what it costs
			{100 * time.Millisecond, nil, 5 * time.Second},
		} {
			ask(step.takes, step.err)
			if calls != i+1 {
				t.Fatalf("call %d: %d calls", i+1, calls)
			}
			time.Sleep(step.shared - time.Millisecond)
			ask(0, nil)
			if calls != i+1 {
				t.Errorf("call %d took %s and is not shared for %s", i+1, step.takes, step.shared)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
}
