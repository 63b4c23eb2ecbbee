// Package wire translates error classes at the edge of the API: a handler
// returns Error(err), a client calls FromError, and errors.Is works on both
// sides.
package wire

import (
	"errors"
	"fmt"
	"net"

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
	return header(err, connect.CodeResourceExhausted, RetryAfter) != ""
}

// header returns a header of an error with this code, "" if err has another one: Meta writes, and
// connect has errors that all streams of a process share, as that of a stream's end, of code
// Unknown.
func header(err error, code connect.Code, key string) string {
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != code {
		return ""
	}
	return ce.Meta().Get(key)
}

// Stale is the header with which a caller accepts an answer of a coordinator that
// does not lead, from what that one has applied. Any value will do.
const Stale = "Drover-Stale"

// Position is the header of a stream with the position at which it begins: what its
// messages have later. It goes out before the first of them.
const Position = "Drover-Position"

// leaderHeader marks an error of a coordinator that does not lead. Its value is
// the URL of the leader, leaderUnknown, or leaderChanged: all but the last say that
// the coordinator did nothing.
const (
	leaderHeader  = "Drover-Leader"
	leaderUnknown = "unknown"
	leaderChanged = "changed"
)

// NotLeader returns the error of a coordinator that does not lead, with the URL of
// the one that does, "" if it is not known.
func NotLeader(url, format string, args ...any) error {
	err := connect.NewError(connect.CodeUnavailable, fault.New(fault.Unavailable, format, args...))
	if url == "" {
		url = leaderUnknown
	}
	err.Meta().Set(leaderHeader, url)
	return err
}

// noMajority is the header of an error of NotLeader where no leader can be elected:
// too few coordinators answer each other.
const noMajority = "Drover-No-Majority"

// NoMajority is NotLeader of a coordinator that finds too few others to elect one.
func NoMajority(format string, args ...any) error {
	err := NotLeader("", format, args...)
	var ce *connect.Error
	if errors.As(err, &ce) {
		ce.Meta().Set(noMajority, "1")
	}
	return err
}

// IsNoMajority reports whether a received error is one of NoMajority.
func IsNoMajority(err error) bool {
	return header(err, connect.CodeUnavailable, noMajority) != ""
}

// LeaderOf reports whether a received error says that the server did nothing
// because it does not lead, and the URL of the leader, "" if it is not known.
func LeaderOf(err error) (url string, notLeader bool) {
	switch url = header(err, connect.CodeUnavailable, leaderHeader); url {
	case leaderUnknown:
		return "", true
	case leaderChanged:
		return "", false
	default:
		return url, url != ""
	}
}

// LeaderChanged gives err the mark that the coordinator stopped leading, or
// stopped, while it handled the call. What was asked for may have happened.
func LeaderChanged(err error) error {
	if _, no := LeaderOf(err); no {
		return err
	}
	out := connect.NewError(connect.CodeUnavailable, fault.New(fault.Unavailable, "the coordinator stopped, or stopped leading, during the call, which may have had its effect: %w", err))
	out.Meta().Set(leaderHeader, leaderChanged)
	return out
}

// IsLeaderChanged reports whether a received error has the mark of LeaderChanged.
func IsLeaderChanged(err error) bool {
	return header(err, connect.CodeUnavailable, leaderHeader) == leaderChanged
}

// NodeOwner names the epoch of a node whose name another daemon has.
type NodeOwner struct {
	Cluster      string
	ClusterEpoch uint64
	Node         int32
	Epoch        uint64
}

// nodeOwner is the header of an error by which a daemon is refused the name of a node.
const nodeOwner = "Drover-Node-Owner"

// NameTaken returns the error of a registration under the name of a node that is up with another
// daemon.
func NameTaken(o NodeOwner, format string, args ...any) error {
	err := connect.NewError(connect.CodeUnavailable, fault.New(fault.Unavailable, format, args...))
	err.Meta().Set(nodeOwner, fmt.Sprintf("%d %d %d %s", o.ClusterEpoch, o.Node, o.Epoch, o.Cluster))
	return err
}

// OwnerOf reports whether a received error is one of NameTaken, and whose the name is.
func OwnerOf(err error) (o NodeOwner, taken bool) {
	_, scanned := fmt.Sscanf(header(err, connect.CodeUnavailable, nodeOwner), "%d %d %d %s", &o.ClusterEpoch, &o.Node, &o.Epoch, &o.Cluster)
	return o, scanned == nil
}

// NotConnected reports whether a call failed since no connection was made. A dial that
// ends by its own time limit has the code of a deadline, which the call may not have had.
func NotConnected(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
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
	if ce.Code() == connect.CodeUnauthenticated { // Denied, before the caller's name is known
		return fault.New(fault.Denied, "%s", ce.Message())
	}
	if NotConnected(err) {
		return fault.New(fault.Unavailable, "%s", ce.Message())
	}
	for _, c := range codes {
		if ce.Code() == c.code {
			return fault.New(c.class, "%s", ce.Message())
		}
	}
	return errors.New(ce.Message())
}
