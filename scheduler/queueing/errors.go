package queueing

import "errors"

// The classes of errors of this package, for errors.Is.
var (
	// errInput is the class of errors for a parameter that is not a number, negative or
	// out of range.
	errInput = errors.New("queueing: bad parameter")
	// errUnstable is the class of errors for a load of one or more: the queue grows
	// without limit and has no steady state.
	errUnstable = errors.New("queueing: load is not below 1, no steady state")
	// errHistory is the class of errors for a window with too few records to estimate a
	// rate.
	errHistory = errors.New("queueing: too few records in the window")
	// errRecord is the class of errors for an inconsistent record of history; the
	// record was ignored.
	errRecord = errors.New("queueing: inconsistent record")
)
