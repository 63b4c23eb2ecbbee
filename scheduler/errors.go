package scheduler

import (
	"errors"
	"fmt"
)

// The classes of what State refuses, asked with errors.Is.
var (
	// ErrUnknown: an id or a name that is not in the State.
	ErrUnknown = errors.New("unknown")
	// ErrExists: an id or a name that is in the State already.
	ErrExists = errors.New("exists already")
	// ErrInvalid: a value that has no meaning, with what to write instead.
	ErrInvalid = errors.New("invalid")
	// ErrStale: an event or action for an attempt, a run or a phase that is
	// past. It is normal after a lost node; drop it.
	ErrStale = errors.New("stale")
	// ErrNoRoom: an action that does not fit its node, disk or cap.
	ErrNoRoom = errors.New("no room")
	// ErrBusy: something that runs or is being tried stands in the way.
	ErrBusy = errors.New("busy")
)

// Error is every error of this package: a class, the thing, what is wrong.
type Error struct {
	Class error  // one of the Err values above
	What  string // the thing: "node 3", "job 17", "tenant \"a\""
	Text  string // what is wrong, and the cure
}

// Error prints the thing and what is wrong with it.
func (e *Error) Error() string { return e.What + ": " + e.Text }

// Unwrap gives the class.
func (e *Error) Unwrap() error { return e.Class }

func refuse(class error, what any, format string, args ...any) error {
	w, ok := what.(string)
	if !ok {
		w = fmt.Sprint(what)
	}
	return &Error{Class: class, What: w, Text: fmt.Sprintf(format, args...)}
}
