package harness

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/drover-run/drover/mapreduce"
)

// failure is an error that knows whose it is.
type failure struct {
	class mapreduce.Class
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failf(c mapreduce.Class, format string, a ...any) error {
	return &failure{c, fmt.Errorf(format, a...)}
}

// classOf finds the class of an error. A full disk is a full disk wherever it
// was met; otherwise the failure nearest to its cause decides.
func classOf(err error, kind mapreduce.Kind) mapreduce.Class {
	var f *failure
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

// messageOf is the line for the user.
func messageOf(err error, c mapreduce.Class) string {
	switch {
	case err == nil:
		return ""
	case c == mapreduce.ClassQuota:
		return "disk quota: no space left for the task's files; raise the disk quota of the task or write less (" + err.Error() + ")"
	default:
		return err.Error()
	}
}
