package coordinator

import (
	"context"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
)

// debugService serves what a developer requests of this process or, through the proxy, of a node's
// daemon. Only operators may call it (procedures). A coordinator that does not lead answers stale
// reads (staleReads), because it may be the one with the problem.
type debugService struct {
	core *core
	own  *diagnosis.Service
}

var _ droverv1connect.DebugServiceHandler = (*debugService)(nil)

// Monitor streams log records.
func (s *debugService) Monitor(ctx context.Context, req *connect.Request[droverv1.MonitorRequest], stream *connect.ServerStream[droverv1.LogRecord]) error {
	if err := s.core.rights.needOperator(ctx, "read the daemons' logs"); err != nil {
		return err
	}
	if req.Msg.GetNode() == "" {
		return s.own.Monitor(ctx, req, stream)
	}
	c, err := s.nodeDebug(req.Msg.GetNode())
	if err != nil {
		return err
	}
	from, err := c.Monitor(ctx, connect.NewRequest(req.Msg))
	return forwardStream(from, err, stream)
}

// Profile streams a profile.
func (s *debugService) Profile(ctx context.Context, req *connect.Request[droverv1.ProfileRequest], stream *connect.ServerStream[droverv1.ProfileResponse]) error {
	if err := s.core.rights.needOperator(ctx, "profile the daemons"); err != nil {
		return err
	}
	if req.Msg.GetNode() == "" {
		return s.own.Profile(ctx, req, stream)
	}
	c, err := s.nodeDebug(req.Msg.GetNode())
	if err != nil {
		return err
	}
	from, err := c.Profile(ctx, connect.NewRequest(req.Msg))
	return forwardStream(from, err, stream)
}

// nodeDebug returns a client of a node's daemon.
func (s *debugService) nodeDebug(name string) (c droverv1connect.DebugServiceClient, err error) {
	s.core.view(func(f *facts.Facts) {
		n := f.NodeByName(name)
		switch {
		case n == nil:
			err = fault.New(fault.NotFound, "there is no node %q: `drover node list` shows all", name)
		case !n.Up:
			err = fault.New(fault.Unavailable, "node %s is lost: look at its log on the machine (journalctl -u drover-node)", name)
		case n.Info.GetAddress() == "":
			err = fault.New(fault.Unavailable, "node %s has no address: start its daemon with -listen and a certificate", name)
		default:
			c = s.core.proxy.node(n.Info.GetAddress()).debug
		}
	})
	return c, err
}

// forwardStream forwards the messages of a node's stream; err is the error of the call.
func forwardStream[T any](from *connect.ServerStreamForClient[T], err error, to *connect.ServerStream[T]) error {
	if err != nil {
		return nodeError(err)
	}
	defer func() { _ = from.Close() }() // its error was returned by Err
	if begin := from.ResponseHeader().Get(wire.Position); begin != "" {
		to.ResponseHeader().Set(wire.Position, begin)
		if err := to.Send(nil); err != nil { // the header alone: a message may come late
			return err
		}
	}
	for from.Receive() {
		if err := to.Send(from.Msg()); err != nil {
			return err
		}
	}
	return nodeError(from.Err())
}
