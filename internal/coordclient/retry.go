package coordclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand" // which a simulation can seed
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Pauses after an overload. All of them together take at most about half a minute.
const (
	firstPause  = 250 * time.Millisecond
	longPause   = 8 * time.Second
	maxAttempts = 8
)

// Pauses while the coordinators elect a leader.
const (
	firstSearchPause = 50 * time.Millisecond
	longSearchPause  = 500 * time.Millisecond
	searchLimit      = 20 * time.Second // of one call
	strandedLimit    = 4 * time.Second  // of one that finds too few coordinators to elect a leader: somebody has to start one
	strandedAnswers  = 2                // in a row that say so; one alone may have missed a coordinator that is slow
	maxHops          = 3                // from a follower to the leader that it names, without a pause
)

// Retrier repeats calls that had no effect: those that an overloaded coordinator
// refused, and those that reached none that leads. With several coordinators it
// repeats calls whose effect is unknown too, where repeating has no other effect. So it
// does with one for a command that follows something (Patience), once that has answered.
// It is a connect.Interceptor of a client whose HTTP client has the Transport.
type Retrier struct {
	transport *Transport  // nil where only overloads are repeated
	answered  atomic.Bool // a coordinator has answered a call
	pause     func(context.Context, time.Duration) error
	now       func() time.Time
}

// NewRetrier returns a retrier; t may be nil.
func NewRetrier(t *Transport) *Retrier {
	return &Retrier{transport: t, pause: sleepContext, now: time.Now}
}

// sleepContext waits for d, or returns the context's error.
func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Do calls fn until it succeeds, fails for another reason than those that Retrier names, ctx ends
// or the limits are reached, which are short where no leader can be elected. It returns the last
// error of fn; of a search for the leader the last that a coordinator answered. repeatable says
// that fn may be called again when the effect of a call is unknown.
func (r *Retrier) Do(ctx context.Context, repeatable bool, fn func() error) error {
	return r.repeat(ctx, repeatable, func(func()) error { return fn() })
}

// repeat is Do with a function for fn to call when a coordinator has answered and fn goes on, as a
// stream does.
func (r *Retrier) repeat(ctx context.Context, repeatable bool, fn func(answered func()) error) error {
	begin := func(patient bool) search {
		return search{r: r, repeatable: repeatable, began: r.now(), pause: firstSearchPause, patient: patient, follows: patienceOf(ctx)}
	}
	s := begin(false)
	answered := func() {
		r.answered.Store(true)
		s.follows.answered()
		s = begin(s.patient)
	}
	overloads, pause := 0, firstPause
	for {
		began := r.now()
		err := fn(answered)
		if r.now().Sub(began) > searchLimit { // it was found, and lost after a long time
			s = begin(true)
		}
		if wire.IsOverload(err) || errors.Is(err, fault.Overloaded) {
			if overloads++; overloads == maxAttempts || r.pause(ctx, pause/2+time.Duration(rand.Int63n(int64(pause)))) != nil {
				return err
			}
			pause = min(2*pause, longPause)
			continue
		}
		if _, notLeader := wire.LeaderOf(err); err == nil || ctx.Err() == nil && !notLeader && !isLost(err) {
			answered()
			return err
		}
		again, err := s.next(ctx, err)
		if !again {
			return err
		}
	}
}

// search is one call's search for the coordinator that leads.
type search struct {
	r          *Retrier
	repeatable bool
	began      time.Time
	pause      time.Duration
	hops       int
	passed     bool      // since the last pause one was passed over that could not be reached
	refusal    error     // the last answer of a coordinator
	distrusts  int       // how many in a row did not trust the client, or were not trusted
	stranded   int       // how many answers in a row said that no leader can be elected
	patient    bool      // a call that was answered for long: whatever is missing, it may come back
	follows    *Patience // of the command, nil if it follows nothing
	lost       bool      // its command follows something, and began is when no coordinator answered
}

// waits reports whether the call waits for a coordinator that has answered and is gone. Who
// follows something then has the whole time for it, whatever its call took until then.
func (s *search) waits() bool {
	if s.follows == nil || !s.r.answered.Load() {
		return false
	}
	if !s.lost {
		s.lost, s.began = true, s.follows.outage(s.r.now())
	}
	return true
}

// next turns to another coordinator, if that is what the error of a call without an answer, or of
// one that does not lead, asks for, and reports whether to call again. The error returned is the
// one to give up with.
func (s *search) next(ctx context.Context, err error) (again bool, _ error) {
	t := s.r.transport
	if t == nil {
		return false, err
	}
	if ctx.Err() != nil { // no answer in the caller's time: its next call asks another one
		t.turn()
		return false, err
	}
	waits := s.waits()
	url, notLeader := wire.LeaderOf(err)
	switch {
	case notLeader:
		s.refusal = err
	case t.alone() && !waits:
		return false, err
	}
	if s.distrusts++; !isDistrust(err) && !(waits && isBroken(err) && s.follows.Refused(ctx)) {
		s.distrusts = 0
	} else if s.distrusts >= len(t.addresses) {
		return false, err // all of them: time mends no certificate
	}
	if !notLeader && !s.repeatable && !neverSent(err) {
		t.turn()
		return false, err
	}
	if url != "" && t.follow(url) {
		if s.hops++; s.hops <= maxHops {
			return true, nil
		}
	} else if t.alone() && url != "" {
		return false, err // that one cannot be reached from here
	} else {
		t.turn()
	}
	if neverSent(err) && !s.passed && !t.alone() { // nobody was asked: the next one may lead already
		s.passed = true
		return true, nil
	}
	switch {
	case wire.IsNoMajority(err):
		s.stranded++
	case !neverSent(err):
		s.stranded = 0
	}
	if s.refusal != nil && !notLeader {
		err = s.refusal
	}
	limit := searchLimit
	switch {
	case waits:
		limit = s.follows.Limit
		s.follows.noticed(s.r.now())
	case s.stranded >= strandedAnswers && !s.patient:
		limit = strandedLimit
	}
	if s.r.now().Sub(s.began) > limit || s.r.pause(ctx, s.pause/2+time.Duration(rand.Int63n(int64(s.pause)))) != nil {
		return false, err
	}
	s.pause, s.hops, s.passed = min(2*s.pause, longSearchPause), 0, false
	return true, nil
}

// isLost reports whether a call got no answer, or none that says what happened. The caller's
// own time has not run out (search.next): a deadline that was exceeded is that of a
// connection, as to a machine that is gone.
func isLost(err error) bool {
	if wire.IsLeaderChanged(err) {
		return true
	}
	var ce *connect.Error
	if !errors.As(err, &ce) || connect.IsWireError(ce) || errors.Is(err, io.EOF) { // which is the end of a stream
		return false
	}
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal:
		return true
	default:
		return false
	}
}

// neverSent reports whether no coordinator got the request.
func neverSent(err error) bool {
	var own *tls.CertificateVerificationError
	return wire.NotConnected(err) || errors.As(err, &own) || handshakeTimedOut(err)
}

// handshakeTimedOut reports whether a TLS handshake was not over in its time. net/http does not export
// the type of this error, so its text says so; an error that a coordinator sent is no net.Error.
func handshakeTimedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && strings.HasSuffix(timeout.Error(), "net/http: TLS handshake timeout")
}

// isBroken reports whether a connection was made and ended without an answer. A refusal of this
// client's certificate may look so.
func isBroken(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && !connect.IsWireError(ce) && !neverSent(err)
}

// isDistrust reports whether the TLS handshake failed since one side does not trust the
// other's certificate.
func isDistrust(err error) bool {
	var own *tls.CertificateVerificationError
	var op *net.OpError
	return errors.As(err, &own) || errors.As(err, &op) && op.Op == "remote error" // a TLS alert of the other side
}

// reads are the calls that change nothing.
var reads = map[string]bool{
	droverv1connect.ClientServiceStatusProcedure:            true,
	droverv1connect.ClientServiceHasBlobsProcedure:          true,
	droverv1connect.ClientServicePlanJobProcedure:           true,
	droverv1connect.ClientServiceListJobsProcedure:          true,
	droverv1connect.ClientServiceGetJobProcedure:            true,
	droverv1connect.ClientServiceListTasksProcedure:         true,
	droverv1connect.ClientServiceListNodesProcedure:         true,
	droverv1connect.ClientServiceListTenantsProcedure:       true,
	droverv1connect.ClientServiceGetSchedulerProcedure:      true,
	droverv1connect.ClientServiceCalibrationProcedure:       true,
	droverv1connect.HistoryServiceListPastJobsProcedure:     true,
	droverv1connect.HistoryServiceGetPastJobProcedure:       true,
	droverv1connect.HistoryServiceListPastAttemptsProcedure: true,
	droverv1connect.HistoryServiceUsageProcedure:            true,
	droverv1connect.HistoryServiceListPastSamplesProcedure:  true,
	droverv1connect.ClientServiceGetScheduleProcedure:       true,
	droverv1connect.OperatorServiceListServersProcedure:     true,
	droverv1connect.OperatorServiceListUnknownRunsProcedure: true,
	droverv1connect.TokenServiceListTokensProcedure:         true,
	droverv1connect.SecretServiceListSecretsProcedure:       true,
	droverv1connect.NodeServiceGetSecretsProcedure:          true,
}

// repeatable reports whether a request may be sent again when it is unknown
// whether it had its effect. A second effect is none for reads, for submissions
// with a key, for jobs named by number and for reports of nodes. Any other change
// may since have been followed by that of somebody else, which a second one would
// undo.
func repeatable(req connect.AnyRequest) bool {
	if reads[req.Spec().Procedure] {
		return true
	}
	switch m := req.Any().(type) {
	case *droverv1.SubmitJobRequest:
		return m.GetIdempotencyKey() != ""
	case *droverv1.StopJobRequest:
		_, err := strconv.ParseUint(m.GetJob(), 10, 64)
		return err == nil
	case *droverv1.RegisterRequest, *droverv1.ReportRequest, *droverv1.AddServerRequest, *droverv1.RemoveServerRequest:
		return true
	default:
		return false
	}
}

// WrapUnary implements connect.Interceptor.
func (r *Retrier) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (res connect.AnyResponse, err error) {
		err = r.Do(ctx, repeatable(req), func() error {
			res, err = next(ctx, req)
			return err
		})
		return res, err
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (r *Retrier) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient repeats streams with one request message until a coordinator
// that leads answers, and continues those with positions when another one leads. Those
// with more request messages (PutBlob, Exec) cannot be repeated here: part of the
// request is gone.
func (r *Retrier) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if spec.StreamType != connect.StreamTypeServer {
			return conn
		}
		return &repeatedStream{StreamingClientConn: conn, r: r, ctx: ctx, open: func() connect.StreamingClientConn { return next(ctx, spec) }}
	}
}
