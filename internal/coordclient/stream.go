package coordclient

import (
	"context"
	"errors"
	"io"
	"maps"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
)

// repeatedStream opens its stream again until a leading coordinator has answered. A stream with
// positions continues at the next leader: the caller sees one stream, without loss or repetition.
// The stream of a job's states starts again at the next leader, because each of its messages is the
// whole state.
type repeatedStream struct {
	connect.StreamingClientConn
	r       *Retrier
	ctx     context.Context
	open    func() connect.StreamingClientConn
	request any
	begun   bool   // a message was received
	fresh   bool   // no message was received since the stream was opened again
	ended   error  // the end of the stream, which no retry changes
	after   string // the position reached; "" if the stream has no positions, or none is known
}

// Send implements connect.StreamingClientConn.
func (s *repeatedStream) Send(m any) error {
	s.request = m
	return s.StreamingClientConn.Send(m)
}

// Receive implements connect.StreamingClientConn.
func (s *repeatedStream) Receive(m any) error {
	if s.ended != nil {
		return s.ended
	}
	broken := false
	err := s.r.repeat(s.ctx, true, func(answered func()) error {
		if broken {
			if err := s.reopen(); err != nil {
				return err
			}
			if s.ResponseHeader().Get(wire.Position) != "" { // the next message may come late
				answered()
			}
		}
		err := s.StreamingClientConn.Receive(m)
		if err == nil || errors.Is(err, io.EOF) {
			return err
		}
		broken = true
		if s.after == "" && (s.fresh || !s.begun) { // the header may have arrived before the first message
			if s.after = s.ResponseHeader().Get(wire.Position); s.after != "" {
				answered()
			}
		}
		if s.begun && s.requestAfter() == nil { // the stream has no position, so it would start again
			s.ended = err
			return nil
		}
		return err
	})
	if s.ended == nil {
		s.ended = err
	}
	if s.ended == nil {
		s.begun, s.fresh = true, false
		s.after = positionOf(m)
	}
	return s.ended
}

// reopen sends the request again, starting after the position reached.
func (s *repeatedStream) reopen() error {
	header := s.RequestHeader().Clone()
	_ = s.StreamingClientConn.CloseResponse() // the coordinator refused or is gone: nothing more comes
	s.StreamingClientConn, s.fresh = s.open(), true
	maps.Copy(s.RequestHeader(), header)
	request := s.request
	if next := s.requestAfter(); next != nil {
		request = next
	}
	if err := s.StreamingClientConn.Send(request); err != nil {
		return err
	}
	return s.StreamingClientConn.CloseRequest()
}

// requestAfter returns the request for the messages after the position reached, nil if the stream
// has no position.
func (s *repeatedStream) requestAfter() proto.Message {
	if s.after == "" {
		return nil
	}
	switch q := s.request.(type) {
	case *droverv1.LogsRequest:
		next := proto.CloneOf(q)
		next.After = s.after
		return next
	case *droverv1.EventsRequest:
		next := proto.CloneOf(q)
		next.After = s.after
		return next
	case *droverv1.MonitorRequest:
		next := proto.CloneOf(q)
		next.After = s.after
		return next
	case *droverv1.GetJobRequest:
		next := proto.CloneOf(q)
		next.Job = s.after
		return next
	default:
		return nil
	}
}

// positionOf returns the position of a message, "" if it has none. The position of a job's state is
// the number of the job, because by the next request another job may have its name.
func positionOf(m any) string {
	if j, ok := m.(*droverv1.GetJobResponse); ok {
		return strconv.FormatUint(j.GetJob().GetJob(), 10)
	}
	if p, ok := m.(interface{ GetPosition() string }); ok {
		return p.GetPosition()
	}
	return ""
}
