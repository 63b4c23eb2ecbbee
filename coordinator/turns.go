package coordinator

import (
	"bytes"
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
)

// turns limits how many calls that need a processor run at once, and how many of them one identity
// has, so that others need not wait for its long calls. Waiting identities are served in rotation,
// each with its oldest call. With a budget, an identity that has used much time rests before its
// next turn even if nobody else waits: its calls would take a processor from the decisions and the
// nodes of everybody.
type turns struct {
	what   string // plural, for errors
	limit  int    // at once
	own    int    // of one identity at once
	share  int    // calls of one identity that may wait
	budget budget // zero: none
	now    func() time.Time

	mu      sync.Mutex
	rested  map[string]time.Time // with a budget: when the identity may have its next turn
	wake    time.Time            // when a resting identity is checked again; zero: never
	busy    int
	holds   map[string]int             // turns of each identity; none is zero
	waiting map[string][]chan struct{} // by identity, oldest first; none is empty
	order   []string                   // the identities in waiting, next one first
}

func newTurns(what string, limit, own, share int) *turns {
	return &turns{what: what, limit: limit, own: own, share: share, now: time.Now, rested: map[string]time.Time{}, holds: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// budget is the time of turns that an identity may use: burst at once, and in the long run the
// fraction part of one processor.
type budget struct {
	burst time.Duration
	part  float64
}

// The budgets of responses, and of the looks for news by all streams or watches of an identity:
// those are short, and a burst of them would be long for everybody else.
var (
	answerBudget = budget{3 * time.Second, 0.2}
	lookBudget   = budget{200 * time.Millisecond, 0.1}
)

// withBudget gives identities a budget of time.
func (t *turns) withBudget(b budget) *turns {
	t.budget = b
	return t
}

// wait waits for a turn, which ends with done. It returns an overload error if too many calls of
// the identity wait already, and ctx's error when ctx ends.
func (t *turns) wait(ctx context.Context, id identity) (done func(), err error) {
	t.mu.Lock()
	if len(t.waiting[id.name]) >= t.share {
		t.mu.Unlock()
		return nil, fault.Overload("%s has %d %s that wait for their turn: try again in a second, or ask for fewer at once", id.displayName(), t.share, t.what)
	}
	granted := make(chan struct{})
	if len(t.waiting[id.name]) == 0 {
		t.order = append(t.order, id.name)
	}
	t.waiting[id.name] = append(t.waiting[id.name], granted)
	t.grantLocked()
	t.mu.Unlock()
	select {
	case <-granted:
	case <-ctx.Done():
		if t.leave(id.name, granted) {
			return nil, ctx.Err()
		}
	}
	began := t.now()
	return sync.OnceFunc(func() { t.end(id, t.now().Sub(began)) }), nil
}

// grantLocked gives free turns to waiting calls.
func (t *turns) grantLocked() {
	for i := 0; i < len(t.order) && t.busy < t.limit; {
		name := t.order[i]
		if t.holds[name] >= t.own || t.restsLocked(name) {
			i++
			continue
		}
		close(t.waiting[name][0])
		t.busy++
		t.holds[name]++
		t.order = slices.Delete(t.order, i, i+1)
		if rest := t.waiting[name][1:]; len(rest) > 0 {
			t.waiting[name] = rest
			t.order = append(t.order, name)
		} else {
			delete(t.waiting, name)
		}
	}
}

// restsLocked reports whether an identity has to rest. If so, it is checked again at the end of its
// rest.
func (t *turns) restsLocked(name string) bool {
	until, now := t.rested[name], t.now()
	if !until.After(now) {
		return false
	}
	if t.wake.IsZero() || until.Before(t.wake) {
		t.wake = until
		time.AfterFunc(until.Sub(now), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.wake.Equal(until) {
				t.wake = time.Time{}
			}
			t.grantLocked()
		})
	}
	return true
}

// restsUntil returns whether an identity has to rest, and until when.
func (t *turns) restsUntil(id identity) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	until := t.rested[id.name]
	return until, until.After(t.now())
}

// chargeLocked charges a turn's time to the budget of its identity.
func (t *turns) chargeLocked(name string, took time.Duration) {
	now := t.now()
	full := now.Add(-time.Duration(float64(t.budget.burst) / t.budget.part)) // the whole burst is left
	if len(t.rested) >= maxRates {
		maps.DeleteFunc(t.rested, func(_ string, at time.Time) bool { return !at.After(full) })
	}
	from := t.rested[name]
	if from.Before(full) {
		from = full
	}
	t.rested[name] = from.Add(time.Duration(float64(took) / t.budget.part))
}

func (t *turns) end(id identity, took time.Duration) {
	name := id.name
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.budget.part > 0 && id.kind != kindLocal {
		t.chargeLocked(name, took)
	}
	t.busy--
	if t.holds[name]--; t.holds[name] == 0 {
		delete(t.holds, name)
	}
	t.grantLocked()
}

// leave removes a call from the queue. It returns false if the call has its turn already.
func (t *turns) leave(name string, granted chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.waiting[name]
	i := slices.Index(queue, granted)
	if i < 0 {
		return false
	}
	if t.waiting[name] = slices.Delete(queue, i, i+1); len(queue) == 1 {
		delete(t.waiting, name)
		t.order = slices.DeleteFunc(t.order, func(n string) bool { return n == name })
	}
	return true
}

// newReadTurns allows as many reads at once as there are processors, half of them of one identity.
func newReadTurns(share int) *turns {
	n := runtime.GOMAXPROCS(0)
	return newTurns("reads", max(2, n), max(1, n/2), share).withBudget(answerBudget)
}

// newLookTurns limits the looks of streams for new events to one at a time per identity. Any number
// may wait, since the number of streams is bounded elsewhere.
func newLookTurns() *turns {
	return newTurns("streams of events", max(2, runtime.GOMAXPROCS(0)), 1, math.MaxInt).withBudget(lookBudget)
}

// reads are the calls that need processor time and wait for nothing: they take turns.
var reads = map[string]bool{
	droverv1connect.ClientServiceStatusProcedure:            true,
	droverv1connect.ClientServiceListJobsProcedure:          true,
	droverv1connect.ClientServiceGetJobProcedure:            true,
	droverv1connect.ClientServiceListTasksProcedure:         true,
	droverv1connect.ClientServiceListNodesProcedure:         true,
	droverv1connect.ClientServiceListTenantsProcedure:       true,
	droverv1connect.ClientServiceGetSchedulerProcedure:      true,
	droverv1connect.ClientServiceCalibrationProcedure:       true,
	droverv1connect.ClientServiceGetScheduleProcedure:       true,
	droverv1connect.HistoryServiceListPastJobsProcedure:     true,
	droverv1connect.HistoryServiceGetPastJobProcedure:       true,
	droverv1connect.HistoryServiceListPastAttemptsProcedure: true,
	droverv1connect.HistoryServiceUsageProcedure:            true,
	droverv1connect.HistoryServiceListPastSamplesProcedure:  true,
	droverv1connect.TokenServiceListTokensProcedure:         true,
}

// takeTurn waits for a turn for a read whose request has arrived, and returns the writer of the
// response. The turn ends with the first byte of the response. The response is then complete in
// memory, so a slow reader holds no turn. done ends the turn if there was no response.
func (a *admission) takeTurn(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, done func(), err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return w, func() {}, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	done, err = a.readTurns.wait(r.Context(), caller(r.Context()))
	if err != nil {
		return w, func() {}, err
	}
	return &turnWriter{w, done}, done, nil
}

// pageTurn is the longest turn of a page: pages that follow something never end by themselves.
const pageTurn = time.Second

// inPageTurn makes pages wait for a turn, which ends with the first byte of the response. A page
// calls the API in this process, where each call has a turn of its own.
func (a *admission) inPageTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done, err := a.pageTurns.wait(r.Context(), caller(r.Context()))
		if err != nil {
			tellLater(w, err)
			return
		}
		defer done()
		defer time.AfterFunc(pageTurn, done).Stop()
		next.ServeHTTP(&turnWriter{w, done}, r)
	})
}

// turnWriter ends a turn with the first byte of the response.
type turnWriter struct {
	http.ResponseWriter
	done func()
}

// Write implements io.Writer.
func (w *turnWriter) Write(p []byte) (int, error) {
	w.done()
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (w *turnWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *turnWriter) WriteHeader(status int) {
	w.done()
	w.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher, which pages that follow something need.
func (w *turnWriter) Flush() {
	w.done()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // the next Write returns what failed
}
