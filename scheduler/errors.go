package scheduler

import (
	"errors"
	"fmt"
)

// The classes of errors that State returns; test for them with errors.Is.
var (
	// ErrUnknown: the State has no such id or name.
	ErrUnknown = errors.New("unknown")
	// ErrInvalid: a value is out of range, taken already, or still in use.
	ErrInvalid = errors.New("invalid")
	// ErrStale: an event or action refers to an attempt, run or phase that is over. This is
	// normal after a node was lost; ignore the event.
	ErrStale = errors.New("stale")
	// ErrNoCapacity: an action does not fit on its node or disk, or under its cap.
	ErrNoCapacity = errors.New("no free capacity")
)

// Error is the type of every error of this package: a class, the object, what is wrong.
type Error struct {
	Class error  // one of the Err values above
	what  string // the object: "node 3", "job 17", "tenant \"a\""
	text  string // what is wrong, and how to correct it
}

// Error returns the object and what is wrong with it.
func (e *Error) Error() string { return e.what + ": " + e.text }

// Unwrap returns the class.
func (e *Error) Unwrap() error { return e.Class }

// refuse returns an *Error. what names the object.
func refuse(class error, what, format string, args ...any) error {
	return &Error{Class: class, what: what, text: fmt.Sprintf(format, args...)}
}
