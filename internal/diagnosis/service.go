package diagnosis

import (
	"context"
	"io"
	"log/slog"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of profiles.
const (
	defaultSeconds = 5
	maxSeconds     = 60
	profileChunk   = 64 << 10
)

// Service serves DebugService for this process, whatever node a request names. If Log is nil, there
// are no records.
type Service struct {
	Log *Log

	profiling atomic.Bool
}

var _ droverv1connect.DebugServiceHandler = (*Service)(nil)

// Monitor implements DebugServiceHandler.
func (s *Service) Monitor(ctx context.Context, req *connect.Request[droverv1.MonitorRequest], stream *connect.ServerStream[droverv1.LogRecord]) error {
	level := slog.LevelInfo
	if text := req.Msg.GetLevel(); text != "" {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return fault.New(fault.Invalid, "level %q: give debug, info, warn or error", text)
		}
	}
	if s.Log == nil {
		return fault.New(fault.Unsupported, "this daemon keeps no log records")
	}
	recent, begin, f, err := s.Log.follow(level, req.Msg)
	if err != nil {
		return err
	}
	defer s.Log.leave(f)
	stream.ResponseHeader().Set(wire.Position, begin)
	if err := stream.Send(nil); err != nil { // sends only the header, because the next record may come late
		return err
	}
	for _, r := range recent {
		if err := stream.Send(r); err != nil {
			return err
		}
	}
	if !req.Msg.GetFollow() {
		return nil
	}
	for {
		select {
		case r := <-f.records:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-ctx.Done(): // the caller left, the daemon stops, or another coordinator leads
			return fault.New(fault.Unavailable, "the daemon is stopping, or leads no longer: ask again")
		}
	}
}

// Profile implements DebugServiceHandler. It runs one profile at a time: a second CPU profile or
// trace would fail, and the others cost time.
func (s *Service) Profile(ctx context.Context, req *connect.Request[droverv1.ProfileRequest], stream *connect.ServerStream[droverv1.ProfileResponse]) error {
	kind, seconds := req.Msg.GetKind(), req.Msg.GetSeconds()
	if seconds == 0 {
		seconds = defaultSeconds
	}
	if seconds < 1 || seconds > maxSeconds {
		return fault.New(fault.Invalid, "a profile of %d seconds: give 1 to %d", seconds, maxSeconds)
	}
	if !s.profiling.CompareAndSwap(false, true) {
		return fault.Overload("another profile of this daemon is being taken: try again when it is done")
	}
	defer s.profiling.Store(false)
	w := &chunks{stream: stream}
	if err := write(ctx, w, kind, time.Duration(seconds)*time.Second); err != nil {
		return err
	}
	return w.flush()
}

// write writes a profile. If ctx ends, a CPU profile or trace ends early.
func write(ctx context.Context, w io.Writer, kind string, length time.Duration) error {
	switch kind {
	case "cpu":
		if err := pprof.StartCPUProfile(w); err != nil {
			return fault.New(fault.Conflict, "no CPU profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	case "trace":
		if err := trace.Start(w); err != nil {
			return fault.New(fault.Conflict, "no trace: %w", err)
		}
		defer trace.Stop()
	default:
		p := pprof.Lookup(kind)
		if p == nil {
			return fault.New(fault.Invalid, "profile %q: give cpu, trace, %s", kind, strings.Join(profileKinds(), ", "))
		}
		return p.WriteTo(w, 0)
	}
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
	return nil
}

func profileKinds() []string {
	var names []string
	for _, p := range pprof.Profiles() {
		names = append(names, p.Name())
	}
	return names
}

// chunks sends the bytes written to it as messages of at least profileChunk bytes.
type chunks struct {
	stream *connect.ServerStream[droverv1.ProfileResponse]
	buf    []byte
}

// Write implements io.Writer.
func (c *chunks) Write(b []byte) (int, error) {
	c.buf = append(c.buf, b...)
	if len(c.buf) < profileChunk {
		return len(b), nil
	}
	return len(b), c.flush()
}

func (c *chunks) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	err := c.stream.Send(&droverv1.ProfileResponse{Data: c.buf})
	c.buf = c.buf[:0]
	return err
}
