package harness

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/drover-run/drover/mapreduce"
)

// classifiedError is an error with its exit class. permanent says that every
// other attempt would fail in the same way.
type classifiedError struct {
	class     mapreduce.ExitClass
	permanent bool
	err       error
}

func (f *classifiedError) Error() string { return f.err.Error() }
func (f *classifiedError) Unwrap() error { return f.err }

func classErrorf(c mapreduce.ExitClass, format string, a ...any) error {
	return &classifiedError{class: c, err: fmt.Errorf(format, a...)}
}

func permanentErrorf(c mapreduce.ExitClass, format string, a ...any) error {
	return &classifiedError{class: c, permanent: true, err: fmt.Errorf(format, a...)}
}

// isPermanent reports whether every other attempt would fail too. Only failures of the program can
// be permanent. A full disk or missing input is not, whatever else failed.
func isPermanent(err error, c mapreduce.ExitClass) bool {
	var f *classifiedError
	return (c == mapreduce.ClassUserExit || c == mapreduce.ClassUserData) && errors.As(err, &f) && f.permanent
}

// classOf returns the exit class of an error. A full disk always wins; otherwise
// the classifiedError nearest to the cause decides.
func classOf(err error, kind mapreduce.Kind) mapreduce.ExitClass {
	var f *classifiedError
	switch {
	case err == nil:
		return mapreduce.ClassOK
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return mapreduce.ClassQuota
	case errors.As(err, &f):
		return f.class
	case errors.Is(err, context.Canceled):
		return mapreduce.ClassKilled
	case errors.Is(err, mapreduce.ErrSpec):
		return mapreduce.ClassSpec
	case errors.Is(err, mapreduce.ErrCorrupt) && kind == mapreduce.KindReduce:
		return mapreduce.ClassInput
	default:
		return mapreduce.ClassIO
	}
}

// messageOf returns the message for the user.
func messageOf(err error, c mapreduce.ExitClass) string {
	switch {
	case err == nil:
		return ""
	case c == mapreduce.ClassQuota:
		return "disk quota: no space left for the task's files; raise the disk quota of the task or write less (" + err.Error() + ")"
	default:
		return err.Error()
	}
}
