package node

import (
	"errors"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/task"
)

// retries counts how often each step of an attempt has failed in a row. The counts decide when to
// give up, and how long to pause before the next try.
type retries struct {
	failures map[task.Do]failures
	// startError is the error of the last failed try to create or start the container.
	startError string
}

// failures counts the tries of a step that failed since it last succeeded.
type failures struct {
	unreachable int // the engine, the coordinator or another node did not answer, which says nothing about the step
	others      int
}

// all returns the number of all failed tries.
func (f failures) all() int { return f.unreachable + f.others }

// add counts a failure, and returns the counts.
func (r *retries) add(do task.Do, err error) failures {
	if r.failures == nil {
		r.failures = map[task.Do]failures{}
	}
	n := r.failures[do]
	if errors.Is(err, fault.Unavailable) {
		n.unreachable++
	} else {
		n.others++
	}
	r.failures[do] = n
	return n
}

// clear resets the counts of these steps.
func (r *retries) clear(steps ...task.Do) {
	for _, do := range steps {
		delete(r.failures, do)
	}
}

// clearAll resets the counts of all steps.
func (r *retries) clearAll() { r.failures = nil }

// pause returns how long to wait after n failures.
func (r *retries) pause(n int) time.Duration { return min(maxPause, firstPause<<min(n-1, 10)) }

// recordStart records the error of a step that creates or starts the container, and does nothing
// for other steps. It reports whether the step has failed so often that another node should run the
// task.
func (r *retries) recordStart(do task.Do, n int, err error) bool {
	if do != task.CreateContainer && do != task.Start {
		return false
	}
	same := r.startError == err.Error()
	r.startError = err.Error()
	return n >= maxStartTries || same && n >= maxSameErrorTries
}
