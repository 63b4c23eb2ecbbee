package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/coordinator/audit"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of the records of refused calls between two summaries. Without them one user's failing
// calls would push everybody else's records out of the audit log, which keeps a fixed number of
// bytes.
const (
	summaryEvery       = time.Minute
	recordsOfUser      = 20  // of one identity, and as many again of calls that were denied
	recordsOfStranger  = 5   // of callers from one network who did not authenticate, and as many again of denied calls
	maxCountedUsers    = 100 // identities that are counted on their own; all others are counted together
	maxCountedNetworks = 10  // networks with records of their own
	otherCallers       = "others"
)

// refusalRecords limits the records of refused calls, and counts the calls that get none. Denied
// calls are counted apart, so that other failures do not use up their records. Memory is bounded by
// the limits above.
type refusalRecords struct {
	records int // between two summaries, of one caller
	callers int // that are told apart

	mu sync.Mutex
	of map[refusedCaller]*refusedCalls
}

type refusedCaller struct {
	name   string
	denied bool
}

// refusedCalls are the refused calls of one caller since the last summary.
type refusedCalls struct {
	recorded int
	omitted  map[refusedCall]int // at most one for each call and outcome
}

type refusedCall struct{ call, outcome string }

func newRefusalRecords(records, callers int) *refusalRecords {
	return &refusalRecords{records: records, callers: callers, of: map[refusedCaller]*refusedCalls{}}
}

// admit reports whether a refused call gets a record of its own. If not, the call is counted.
func (r *refusalRecords) admit(who refusedCaller, what refusedCall) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of[who] == nil && len(r.of) >= r.callers {
		who.name = otherCallers
	}
	calls := r.of[who]
	if calls == nil {
		calls = &refusedCalls{omitted: map[refusedCall]int{}}
		r.of[who] = calls
	}
	if calls.recorded < r.records {
		calls.recorded++
		return true
	}
	calls.omitted[what]++
	return false
}

// take returns one summary record for each caller, call and outcome that was counted, with the
// caller as its actor, and resets the counts.
func (r *refusalRecords) take() (out []audit.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for who, calls := range r.of {
		for what, n := range calls.omitted {
			out = append(out, audit.Record{Actor: who.name, Call: what.call, Outcome: what.outcome, Omitted: n})
		}
	}
	clear(r.of)
	slices.SortFunc(out, func(a, b audit.Record) int {
		return cmp.Or(cmp.Compare(a.Actor, b.Actor), cmp.Compare(a.Call, b.Call), cmp.Compare(a.Outcome, b.Outcome))
	})
	return out
}

// changedNothing reports whether an error proves that the call had no effect. A call that was
// interrupted, or whose response was lost, may have had one.
func changedNothing(err error) bool {
	switch fault.Class(err) {
	case fault.NotFound, fault.Exists, fault.Invalid, fault.Denied, fault.Conflict, fault.Exhausted, fault.Unsupported:
		return true
	default:
		return false
	}
}

// admitRefusal reports whether a refused call gets a record of its own.
func (a *auditor) admitRefusal(id identity, from string, r *audit.Record, err error) bool {
	denied, what := errors.Is(err, fault.Denied), refusedCall{r.Call, r.Outcome}
	if id.name == "" {
		return a.strangers.admit(refusedCaller{network(from), denied}, what)
	}
	return a.users.admit(refusedCaller{id.name, denied}, what)
}

// keep writes the summaries of counted calls periodically, until ctx ends.
func (a *auditor) keep(ctx context.Context) error {
	for sleep.For(ctx, summaryEvery) {
		a.writeOmitted()
	}
	return nil
}

// writeOmitted writes a summary of the calls that got no record.
func (a *auditor) writeOmitted() {
	for _, r := range a.users.take() {
		r.Actor = auditText(r.Actor)
		a.write(r)
	}
	for _, r := range a.strangers.take() {
		r.Actor, r.From = identity{}.displayName(), r.Actor
		a.write(r)
	}
}
