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

// Bounds of the records of refused calls between two summaries. Without them one user's calls that fail push the
// records of everybody out of the audit log, which keeps a number of bytes.
const (
	summaryEvery       = time.Minute
	recordsOfUser      = 20  // of one identity, and as many again of calls that were denied
	recordsOfStranger  = 5   // of one network from which callers came who did not prove who they are, and as many of denied ones
	maxCountedUsers    = 100 // identities with records of their own; all others share those of one
	maxCountedNetworks = 10  // networks with records of their own
	otherCallers       = "others"
)

// refusalRecords bounds the records of refused calls, and counts the calls without one. A call that was denied has a place
// of its own, which other failures do not take. Memory: see the bounds.
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

// admit reports whether a refused call has a record. It counts one that has none.
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

// take returns a record for each caller, call and outcome of which calls have none, with the caller as its actor, and
// begins to count anew.
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

// changedNothing reports whether an error says that the call had no effect. A call that was broken off, or whose
// answer was lost, may have had one.
func changedNothing(err error) bool {
	switch fault.Class(err) {
	case fault.NotFound, fault.Exists, fault.Invalid, fault.Denied, fault.Conflict, fault.Exhausted, fault.Unsupported:
		return true
	default:
		return false
	}
}

// admitRefusal reports whether a refused call has a record.
func (a *auditor) admitRefusal(id identity, from string, r *audit.Record, err error) bool {
	denied, what := errors.Is(err, fault.Denied), refusedCall{r.Call, r.Outcome}
	if id.name == "" {
		return a.strangers.admit(refusedCaller{network(from), denied}, what)
	}
	return a.users.admit(refusedCaller{id.name, denied}, what)
}

// keep writes what calls have no record, from time to time, until ctx ends.
func (a *auditor) keep(ctx context.Context) error {
	for sleep.For(ctx, summaryEvery) {
		a.writeOmitted()
	}
	return nil
}

// writeOmitted writes how many calls have no record.
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
