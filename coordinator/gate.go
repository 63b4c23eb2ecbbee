package coordinator

import (
	"context"
	"net/http"
	"path"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/replica"
)

// staleReads are the calls that a follower answers, from what it has applied, if
// the caller asks for that (wire.Stale). All others are the leader's.
var staleReads = map[string]bool{
	droverv1connect.ClientServiceStatusProcedure:            true,
	droverv1connect.ClientServiceListJobsProcedure:          true,
	droverv1connect.ClientServiceGetJobProcedure:            true,
	droverv1connect.ClientServiceWatchJobProcedure:          true,
	droverv1connect.ClientServiceListTasksProcedure:         true,
	droverv1connect.ClientServiceListNodesProcedure:         true,
	droverv1connect.ClientServiceListTenantsProcedure:       true,
	droverv1connect.ClientServiceEventsProcedure:            true,
	droverv1connect.ClientServiceGetSchedulerProcedure:      true,
	droverv1connect.HistoryServiceListPastJobsProcedure:     true,
	droverv1connect.HistoryServiceGetPastJobProcedure:       true,
	droverv1connect.HistoryServiceListPastAttemptsProcedure: true,
	droverv1connect.HistoryServiceUsageProcedure:            true,
	droverv1connect.HistoryServiceListPastSamplesProcedure:  true,
	droverv1connect.OperatorServiceListServersProcedure:     true,
	droverv1connect.DebugServiceMonitorProcedure:            true,
	droverv1connect.DebugServiceProfileProcedure:            true,
}

// serviceOf returns the service in a procedure's path.
func serviceOf(procedure string) string { return path.Dir(procedure)[1:] }

func staleAllowed(procedure string, h http.Header) bool {
	return h.Get(wire.Stale) != "" && staleReads[procedure]
}

// Waits for a leader.
const (
	readyLimit    = 10 * time.Second // for the first election of a coordinator that is alone
	electionLimit = 2 * time.Second  // for an election among several: the caller may ask another
	leaderPoll    = 50 * time.Millisecond
)

// gate admits the calls that this server may answer.
type gate struct {
	id         string // of this server
	leadership *leadership
	replica    *replica.Replica
	peers      *peers // nil for one server
	stop       <-chan struct{}
}

// enterCall admits a call that this server may answer: as the leader, verified with the other
// servers, or as a follower if a stale read suffices. cancel is called when the coordinator stops
// or its term ends, so that no call outlives the facts it is based on. release must be called, even
// after an error.
func (g *gate) enterCall(ctx context.Context, cancel func(), procedure string, h http.Header) (_ context.Context, release func(), err error) {
	if droverv1connect.PeerServiceName == serviceOf(procedure) || staleAllowed(procedure, h) {
		return ctx, g.cancelOn(cancel, nil), nil
	}
	g.awaitLeader(ctx)
	term, done := g.leadership.current()
	if term == 0 {
		return ctx, cancel, g.notLeader(ctx)
	}
	release = g.cancelOn(cancel, done)
	if err := g.replica.Verify(ctx); err != nil {
		return ctx, release, wire.NotLeader("", "coordinator %q led until now: ask again in a second (%v)", g.id, err)
	}
	if now := g.replica.Term(); now != term { // elected again: what others stored between is not applied here
		return ctx, release, wire.NotLeader("", "coordinator %q led in term %d, and the log is in term %d: ask again in a second", g.id, term, now)
	}
	return withTerm(ctx, term), release, nil
}

// markChange marks the error of a call during which this server's term ended, or
// the server stopped.
func (g *gate) markChange(ctx context.Context, err error) error {
	began := termOf(ctx)
	if err == nil || began == 0 {
		return err
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeInternal:
	default: // it says what was wrong with the call
		return err
	}
	term, _ := g.leadership.current()
	select {
	case <-g.stop:
	default:
		if term == began && !replica.LedNoMore(err) { // raft knows of the end before leadership does
			return err
		}
	}
	return wire.LeaderChanged(err)
}

// cancelOn cancels a call when the coordinator stops or the term ends. The
// function returned ends both.
func (g *gate) cancelOn(cancel func(), termEnds <-chan struct{}) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-g.stop:
			cancel()
		case <-termEnds:
			cancel()
		case <-done:
		}
	})
	return func() {
		close(done)
		wg.Wait()
		cancel()
	}
}

// follows reports whether another server leads, as far as this one knows.
func (g *gate) follows() bool {
	l := g.replica.Leader()
	return l != "" && l != g.id
}

// awaitLeader waits a while for an election if there is no leader.
func (g *gate) awaitLeader(ctx context.Context) {
	limit := readyLimit
	if g.peers != nil {
		limit = electionLimit
	}
	t, poll := time.NewTimer(limit), time.NewTicker(leaderPoll)
	defer t.Stop()
	defer poll.Stop()
	for {
		begun := g.leadership.beginning()
		if g.leadership.leads() || g.follows() {
			return
		}
		select {
		case <-begun:
		case <-poll.C: // nobody says when another one begins to lead
		case <-t.C:
			return
		case <-g.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// elsewhere returns the URL of the coordinator that leads, if that is another one
// and it is known; "" otherwise.
func (g *gate) elsewhere(ctx context.Context) string {
	if g.peers == nil || g.leadership.leads() || !g.follows() {
		return ""
	}
	return g.peers.apiAddress(ctx, g.replica.LeaderAddress())
}

// notLeader returns an error that says who leads, or why nobody does.
func (g *gate) notLeader(ctx context.Context) error {
	if g.peers == nil {
		return wire.NotLeader("", "this coordinator does not lead yet: try again in a second")
	}
	if g.follows() {
		l := g.replica.Leader()
		url := g.peers.apiAddress(ctx, g.replica.LeaderAddress())
		at := ""
		if url != "" {
			at = " at " + url
		}
		return wire.NotLeader(url, "coordinator %q does not lead, %q does: connect to that one%s", g.id, l, at)
	}
	why, possible := g.peers.whyNoLeader(ctx)
	if !possible {
		return wire.NoMajority("%s", why)
	}
	return wire.NotLeader("", "%s", why)
}
