package node

import (
	goruntime "runtime"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// attemptLoops counts the goroutines that run an attempt's loop.
func attemptLoops() int {
	b := make([]byte, 1<<20)
	for {
		n := goruntime.Stack(b, true)
		if n < len(b) {
			return strings.Count(string(b[:n]), "(*attempt).loop(")
		}
		b = make([]byte, 2*len(b))
	}
}

// TestEndedAttemptsHaveNoGoroutine ends a hundred attempts that the coordinator
// keeps: none has a loop then. Each still does what is asked of it, also after a
// restart of the daemon.
func TestEndedAttemptsHaveNoGoroutine(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	var all []*droverv1.WantedAttempt
	for i := range int32(100) {
		all = append(all, groupTask(i, "fail"), groupTask(100+i, "true"))
	}
	b.put(all...)
	for i, w := range all {
		b.await(t, w, []droverv1.Phase{failed, succeeded}[i%2])
	}
	// What is wanted changes just when the attempts come to rest, as it does when
	// the coordinator has heard of their ends.
	for _, w := range all {
		w.Goal = droverv1.Goal_GOAL_KEEP
	}
	b.put(all...)
	poll(t, "no loop is left", func() bool { return attemptLoops() == 0 })
	b.stopDaemon()
	b.mu.Lock()
	clear(b.seen) // what is seen from now on the next daemon has reported
	b.mu.Unlock()
	b.start()
	poll(t, "no loop is left after a restart", func() bool { return b.get(all[198]) != nil && attemptLoops() == 0 })
	stop := with(groupTask(7, "fail"), func(w *droverv1.WantedAttempt) { w.Goal, w.Spec = droverv1.Goal_GOAL_STOP, nil })
	if !pathExists(b.attemptFolder(all[14])) {
		t.Fatal("a failed attempt's folder is not kept")
	}
	b.put(stop)
	poll(t, "only the logs are left of one that is told to stop", func() bool { return !pathExists(b.attemptFolder(all[14]) + "/task") })
	b.remove(all...)
	for _, w := range all {
		b.await(t, w, gone)
	}
	b.checkNothingLeft()
}
