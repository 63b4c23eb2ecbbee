// Package fault is the short closed list of error classes that all of Drover
// speaks. A package wraps one of them with what it was doing; callers ask with
// errors.Is, and the API translates a class to a status code at the wire.
//
// A "no" is not a fault: no room, waiting and stale are results with a typed
// reason.
package fault

import (
	"errors"
	"fmt"
)

// The classes.
var (
	NotFound    = errors.New("not found")
	Exists      = errors.New("already exists")
	Invalid     = errors.New("invalid")
	Denied      = errors.New("not allowed")
	Conflict    = errors.New("conflict") // the world is in a state that forbids it: a held output path, a live name
	Exhausted   = errors.New("over a limit")
	Unavailable = errors.New("unavailable") // try again later
	Unsupported = errors.New("not supported")
	Corrupt     = errors.New("corrupt")
)

// Classes lists all classes in a fixed order.
func Classes() []error {
	return []error{NotFound, Exists, Invalid, Denied, Conflict, Exhausted, Unavailable, Unsupported, Corrupt}
}

// classed is an error whose text is the caller's and whose class answers
// errors.Is, so that messages do not repeat the class's name.
type classed struct {
	class error
	msg   string
	cause error
}

func (c *classed) Error() string { return c.msg }

func (c *classed) Unwrap() []error {
	if c.cause == nil {
		return []error{c.class}
	}
	return []error{c.class, c.cause}
}

// New gives an error of the class with the formatted text; a %w in the format
// keeps its cause.
func New(class error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &classed{class: class, msg: err.Error(), cause: errors.Unwrap(err)}
}

// Class gives the class of err, or nil where it has none.
func Class(err error) error {
	for _, c := range Classes() {
		if errors.Is(err, c) {
			return c
		}
	}
	return nil
}
