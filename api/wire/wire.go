// Package wire translates error classes at the edge of the API: a handler
// returns Error(err), a client calls FromError, and errors.Is works on both
// sides.
package wire

import (
	"errors"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/internal/fault"
)

// codes maps each class to its status code, one to one.
var codes = []struct {
	class error
	code  connect.Code
}{
	{fault.NotFound, connect.CodeNotFound},
	{fault.Exists, connect.CodeAlreadyExists},
	{fault.Invalid, connect.CodeInvalidArgument},
	{fault.Denied, connect.CodePermissionDenied},
	{fault.Conflict, connect.CodeFailedPrecondition},
	{fault.Exhausted, connect.CodeResourceExhausted},
	{fault.Unavailable, connect.CodeUnavailable},
	{fault.Unsupported, connect.CodeUnimplemented},
	{fault.Corrupt, connect.CodeDataLoss},
}

// Error gives err the status code of its class, internal for an error without a
// class. nil and errors that already have a code are returned unchanged.
func Error(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return err
	}
	for _, c := range codes {
		if errors.Is(err, c.class) {
			return connect.NewError(c.code, err)
		}
	}
	return connect.NewError(connect.CodeInternal, err)
}

// RetryAfter is the header, in seconds, that marks an Exhausted error as one that
// passes by itself (fault.Overloaded).
const RetryAfter = "Retry-After"

// IsOverload reports whether a received error says that the same request may
// succeed after a pause.
func IsOverload(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && ce.Code() == connect.CodeResourceExhausted && ce.Meta().Get(RetryAfter) != ""
}

// FromError gives a received error the class of its status code and the
// server's plain message; a failed connection is Unavailable.
func FromError(err error) error {
	var ce *connect.Error
	if err == nil || !errors.As(err, &ce) {
		return err
	}
	if IsOverload(err) {
		return fault.Overload("%s", ce.Message())
	}
	for _, c := range codes {
		if ce.Code() == c.code {
			return fault.New(c.class, "%s", ce.Message())
		}
	}
	return errors.New(ce.Message())
}
