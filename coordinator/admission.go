package coordinator

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// callPrefix begins the path of every call.
const callPrefix = "/drover."

// admission decides which requests are answered, and when.
type admission struct {
	limits    callLimits
	pools     *pools
	rates     *rates // of all identities
	readTurns *turns // for unary calls
	pageTurns *turns // until a page begins to be sent
	rights    *authorizer
	gate      *gate
	auditor   *auditor
	metrics   *metrics
	pressure  *backpressure
}

func newAdmission(c *core) *admission {
	l := c.cfg.limits
	return &admission{limits: l, pools: c.pools, rates: newRates(l.callRate), readTurns: newReadTurns(int(l.calls / 4)), pageTurns: newTurns("pages", 16, 4, int(l.pages/4)),
		rights: c.rights, gate: c.gate, auditor: c.auditor, metrics: c.metrics, pressure: newBackpressure()}
}

// admit decides on each call before its body is read, in numbered steps:
//
//  1. The procedure is known, the caller does not call more often than its rate, this
//     server may answer it (a follower sends callers to the leader), and the kind and
//     rights of the caller's certificate suffice.
//  2. The caller takes a slot of the procedure's pool.
//  3. The body counts against the caller's share of memory as it arrives, is
//     bounded in size, and is cut off when it stalls; so is every response that
//     the caller does not read (package stall).
//  4. A read waits for its turn: see turns.
//
// Requests that are no calls, such as those for pages, count for the caller's rate
// and take a slot of a pool of their own.
func (a *admission) admit(next http.Handler) http.Handler {
	refusals := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proc, ok := procedures[r.URL.Path]
		if !ok && strings.HasPrefix(r.URL.Path, callPrefix) {
			http.NotFound(w, r)
			return
		}
		if !ok {
			a.admitPage(next, w, r)
			return
		}
		ctl := http.NewResponseController(w)
		body := newPacedBody(r.Body, ctl, a.limits.pace)
		leave, err := a.admitCall(r, proc, body)
		defer leave()
		refuse := func(err error) {
			body.setDeadline(a.limits.pace.Stall)
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close") // do not wait for the rest of the body
			}
			a.metrics.observeRefusal(r.URL.Path, err)
			a.auditor.recordRefusal(r, err)
			a.pressure.refused(r.Context(), caller(r.Context()), err)
			_ = refusals.Write(w, r, toWireError(err)) // fails only if the caller is gone
		}
		if err != nil {
			refuse(err)
			return
		}
		r.Body = body
		if reads[r.URL.Path] {
			out, done, err := a.takeTurn(w, r)
			if err != nil {
				refuse(err)
				return
			}
			defer done()
			w = out
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, body)))
	})
}

// admitCall performs steps 1 and 2, and prepares step 3. The caller must call leave, which releases
// what the call occupies; it is never nil.
func (a *admission) admitCall(r *http.Request, proc procedure, body *pacedBody) (leave func(), err error) {
	nothing := func() {}
	if err := a.checkRate(caller(r.Context())); err != nil {
		return nothing, err
	}
	if serviceOf(r.URL.Path) != droverv1connect.PeerServiceName && !staleAllowed(r.URL.Path, r.Header) && a.gate.follows() {
		return nothing, a.gate.notLeader(r.Context())
	}
	if err := a.rights.checkAccess(r.Context(), r.URL.Path, proc); err != nil {
		return nothing, err
	}
	id := caller(r.Context())
	slots, memory := proc.pool(a.pools), a.pools.bodyPool(proc.access)
	if err := slots.take(id, 1); err != nil {
		return nothing, err
	}
	body.maxBytes = -1
	if proc.oneMessage {
		body.maxBytes = int64(proc.maxMessage) + envelopeBytes
		body.charge = func(n int64) error {
			err := memory.take(id, n)
			a.pressure.refused(r.Context(), id, err)
			return err
		}
	}
	leave = func() {
		slots.release(id, 1)
		if n := body.charged; n > 0 {
			memory.release(id, n)
		}
	}
	if r.ContentLength > body.maxBytes && proc.oneMessage {
		return leave, body.tooLarge()
	}
	if proc.oneMessage && compressed(r) { // what it unpacks to is not known
		if err := body.chargeBytes(int64(proc.maxMessage)); err != nil {
			return leave, err
		}
	}
	return leave, nil
}

// checkRate returns an error if an identity exceeds its call rate. The local operator and other
// coordinators are not limited.
func (a *admission) checkRate(id identity) error {
	if id.kind == kindLocal || id.kind == kindPeer || a.rates.allow(id.name) {
		return nil
	}
	return fault.Overload("%s makes more than %g calls a second: try again in a second", id.displayName(), a.limits.callRate)
}

// admitPage admits a request that is no call of the API: a page, which may be a stream,
// or metrics.
func (a *admission) admitPage(next http.Handler, w http.ResponseWriter, r *http.Request) {
	id := caller(r.Context())
	err := a.checkRate(id)
	if err == nil {
		if err = a.pools.pages.take(id, 1); err == nil {
			defer a.pools.pages.release(id, 1)
			if r.ContentLength != 0 { // a form, which is small
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(a.limits.pace.Stall)) // see extendDeadline
			}
			next.ServeHTTP(w, r)
			return
		}
	}
	a.pressure.refused(r.Context(), id, err)
	tellLater(w, err)
}

// tellLater answers a request outside the API whose caller has exceeded its rate.
func tellLater(w http.ResponseWriter, err error) {
	w.Header().Set(wire.RetryAfter, retryAfter)
	http.Error(w, err.Error(), http.StatusTooManyRequests)
}

// compressed reports whether a request's messages are compressed.
func compressed(r *http.Request) bool {
	for _, h := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if v := r.Header.Get(h); v != "" && v != "identity" {
			return true
		}
	}
	return false
}

type bodyKey struct{}

// endPace ends the time limits on a call's request stream: from now on the caller may be silent for
// as long as it wants, for example a user at a terminal.
func endPace(ctx context.Context) {
	if b, ok := ctx.Value(bodyKey{}).(*pacedBody); ok {
		b.endPace()
	}
}

// refusalReasons are the values of the metrics' label "reason".
var refusalReasons = []string{"unauthenticated", "denied", "over_limit", "other"}

// refusalReason returns the value of the metrics' label "reason", one of refusalReasons.
func refusalReason(err error) string {
	switch fault.Class(err) {
	case fault.Denied:
		if connect.CodeOf(err) == connect.CodeUnauthenticated {
			return "unauthenticated"
		}
		return "denied"
	case fault.Exhausted:
		return "over_limit"
	default:
		return "other"
	}
}
