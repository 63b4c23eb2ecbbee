package queueing

import "errors"

// The classes of errors of this package, for errors.Is.
var (
	// ErrInput is the class of errors for a parameter that is not a number, negative or
	// out of range.
	ErrInput = errors.New("queueing: bad parameter")
	// ErrUnstable is the class of errors for a load of one or more: the queue grows
	// without limit and has no steady state.
	ErrUnstable = errors.New("queueing: load is not below 1, no steady state")
	// ErrHistory is the class of errors for a window with too few records to estimate a
	// rate.
	ErrHistory = errors.New("queueing: too few records in the window")
	// ErrRecord is the class of errors for an inconsistent record of history; the
	// record was ignored.
	ErrRecord = errors.New("queueing: inconsistent record")
)
