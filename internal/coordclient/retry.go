package coordclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand" // not v2: a simulation can seed its global source
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

// Pauses after an overload. Their sum is at most about half a minute.
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
	strandedLimit    = 4 * time.Second  // of a call that finds too few coordinators to elect a leader: an operator must start one
	strandedAnswers  = 2                // consecutive answers that say so; a single answer may have missed a slow coordinator
	maxHops          = 3                // redirects from followers to the leader that they name, without a pause
)

// Retrier repeats calls that had no effect: those that an overloaded coordinator refused, and those
// that reached no leading coordinator. With several coordinators it also repeats a call whose
// effect is unknown, if a second execution has no other effect. With one coordinator it does so
// only for a command with Patience, once the coordinator has answered. Retrier is a
// connect.Interceptor of a client whose HTTP client has the Transport.
type Retrier struct {
	transport *Transport  // nil: only overloads are repeated
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

// Do calls fn until it succeeds, fails for a reason for which Retrier does not repeat, ctx ends, or
// a limit is reached. The limit is short if no leader can be elected. Do returns the last error of
// fn; after a search for the leader it returns the last error that came from a coordinator.
// repeatable says that fn may be called again when the effect of a call is unknown.
func (r *Retrier) Do(ctx context.Context, repeatable bool, fn func() error) error {
	return r.repeat(ctx, repeatable, func(func()) error { return fn() })
}

// repeat is Do for an fn that may go on after a coordinator has answered, as a stream does. fn
// calls answered when that happens.
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
		if r.now().Sub(began) > searchLimit { // a coordinator was found, and lost after a long time
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
	passed     bool      // since the last pause, the search has skipped a coordinator that could not be reached
	refusal    error     // the last error of a coordinator that does not lead
	distrusts  int       // how many coordinators in a row did not trust the client, or were not trusted by it
	stranded   int       // how many answers in a row said that no leader can be elected
	patient    bool      // the call went on for long before this search: a missing coordinator may come back
	follows    *Patience // patience of the command, nil if it has none
	lost       bool      // the call waits by its command's patience, and began is the start of the outage
}

// waits reports whether the call waits, by its command's patience, for a coordinator that has
// answered before and is gone. The time limit then starts with the outage, however long the call
// took before.
func (s *search) waits() bool {
	if s.follows == nil || !s.r.answered.Load() {
		return false
	}
	if !s.lost {
		s.lost, s.began = true, s.follows.outage(s.r.now())
	}
	return true
}

// next handles the error of a call that got no answer or reached a coordinator that does not lead.
// It switches to another coordinator if that can help, and reports whether to call again. If not,
// the caller gives up with the returned error.
func (s *search) next(ctx context.Context, err error) (again bool, _ error) {
	t := s.r.transport
	if t == nil {
		return false, err
	}
	if ctx.Err() != nil { // no answer before the caller's deadline: its next call uses another coordinator
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
		return false, err // this holds for all coordinators; waiting does not mend a certificate
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
		return false, err // this client cannot reach the leader that was named
	} else {
		t.turn()
	}
	if neverSent(err) && !s.passed && !t.alone() { // no coordinator received the request, so try the next one without a pause: it may lead already
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

// isLost reports whether a call got no answer, or an answer that does not tell the outcome. The
// caller's own deadline has not passed (search.next checks it): an exceeded deadline is then the
// deadline of a connection, for example to a machine that is gone.
func isLost(err error) bool {
	if wire.IsLeaderChanged(err) {
		return true
	}
	var ce *connect.Error
	if !errors.As(err, &ce) || connect.IsWireError(ce) || errors.Is(err, io.EOF) { // io.EOF is the end of a stream
		return false
	}
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal:
		return true
	default:
		return false
	}
}

// neverSent reports whether no coordinator can have received the request.
func neverSent(err error) bool {
	var own *tls.CertificateVerificationError
	return wire.NotConnected(err) || errors.As(err, &own) || handshakeTimedOut(err)
}

// handshakeTimedOut reports whether a TLS handshake timed out. net/http does not export the type of
// this error, so its text identifies it. An error that a coordinator sent is no net.Error.
func handshakeTimedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && strings.HasSuffix(timeout.Error(), "net/http: TLS handshake timeout")
}

// isBroken reports whether a connection was established and ended without an answer. A
// coordinator's refusal of this client's certificate may look like that.
func isBroken(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && !connect.IsWireError(ce) && !neverSent(err)
}

// isDistrust reports whether the TLS handshake failed because one side does not trust the other's
// certificate.
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

// repeatable reports whether a request may be sent again when the effect of the first one is
// unknown. A second execution has no further effect for reads, for submissions with a key, for jobs
// named by number and for reports of nodes. Any other change must not be repeated: another client
// may have changed the same object since, and the repetition would undo that.
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

// WrapStreamingClient repeats streams with one request message until a leading coordinator answers,
// and continues a stream with positions when another coordinator leads. A stream with several
// request messages (PutBlob, Exec) cannot be repeated here, because part of the request is gone.
func (r *Retrier) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		if spec.StreamType != connect.StreamTypeServer {
			return conn
		}
		return &repeatedStream{StreamingClientConn: conn, r: r, ctx: ctx, open: func() connect.StreamingClientConn { return next(ctx, spec) }}
	}
}
