// Package wire translates error classes at the API's edge: a handler returns
// Error(err), a client asks with FromError, and errors.Is works on both sides.
package wire

import (
	"errors"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/internal/fault"
)

// codes pairs each class with its status code; both ways are unique.
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

// Error gives err the status code of its class; one without a class becomes
// internal. nil and errors that already carry a code stay as they are.
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

// FromError gives a received error the class of its status code and the plain
// text of the server; a connection that failed is Unavailable.
func FromError(err error) error {
	var ce *connect.Error
	if err == nil || !errors.As(err, &ce) {
		return err
	}
	for _, c := range codes {
		if ce.Code() == c.code {
			return fault.New(c.class, "%s", ce.Message())
		}
	}
	return errors.New(ce.Message())
}
