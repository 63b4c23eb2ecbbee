package queueing

import "errors"

// Classes of errors of this package, asked with errors.Is.
var (
	// ErrInput says that a parameter is not a number, negative or out of range.
	ErrInput = errors.New("queueing: bad parameter")
	// ErrUnstable says that the load is one or more: the queue grows without
	// limit and has no steady state.
	ErrUnstable = errors.New("queueing: load is not below 1, no steady state")
	// ErrHistory says that there are too few records in the window to
	// estimate a rate.
	ErrHistory = errors.New("queueing: too few records in the window")
	// ErrRecord says that a record of history makes no sense; it was ignored.
	ErrRecord = errors.New("queueing: nonsensical record")
)
