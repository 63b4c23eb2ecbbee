// Package fault defines the closed list of Drover's error classes. A package wraps a class with a
// description of its operation; callers test with errors.Is, and the API translates a class to a
// status code.
//
// A "no" is not a fault: no free capacity, waiting and stale are results with a typed reason.
package fault

import (
	"errors"
	"fmt"
)

// The error classes.
var (
	NotFound    = errors.New("not found")
	Exists      = errors.New("already exists")
	Invalid     = errors.New("invalid")
	Denied      = errors.New("not allowed")
	Conflict    = errors.New("conflict") // the current state forbids it: a reserved output path, a live name
	Exhausted   = errors.New("over a limit")
	Unavailable = errors.New("unavailable") // try again later
	Unsupported = errors.New("not supported")
	Corrupt     = errors.New("corrupt")
)

// Classes returns all classes in a fixed order.
func Classes() []error {
	return []error{NotFound, Exists, Invalid, Denied, Conflict, Exhausted, Unavailable, Unsupported, Corrupt}
}

// classed is an error with the caller's text that also matches a class in errors.Is, so that
// messages do not repeat the class's name.
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

// New returns an error of a class with the formatted text. The error of a %w in the format becomes
// its cause.
func New(class error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &classed{class: class, msg: err.Error(), cause: errors.Unwrap(err)}
}

// Overloaded is a cause of Exhausted errors that pass by themselves: a caller may try again after a
// pause. Other limits, such as the size of an upload, apply until the request changes.
var Overloaded = errors.New("overloaded")

// Overload returns an Exhausted error with cause Overloaded and the formatted
// text.
func Overload(format string, args ...any) error {
	return &classed{class: Exhausted, msg: fmt.Sprintf(format, args...), cause: Overloaded}
}

// Class returns the class of err, or nil if it has none.
func Class(err error) error {
	for _, c := range Classes() {
		if errors.Is(err, c) {
			return c
		}
	}
	return nil
}
