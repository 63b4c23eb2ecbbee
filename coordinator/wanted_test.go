package coordinator

import (
	"testing"
	"time"
)

func TestRetryPauseGrowsAndIsBounded(t *testing.T) {
	for failures, want := range map[int32]time.Duration{-1: 0, 0: 0, 1: time.Second, 2: 3 * time.Second, 3: 9 * time.Second, 4: 27 * time.Second, 5: time.Minute, 1 << 30: time.Minute} {
		if got := retryPause(failures); got != want {
			t.Errorf("after %d failures %v, want %v", failures, got, want)
		}
	}
}
