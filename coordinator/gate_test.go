package coordinator

import (
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
)

// A server that was elected again has not applied what the leader between stored until it has begun the new
// term: it does not answer on the strength of the old one.
func TestCallsWaitForTheTermToBegin(t *testing.T) {
	r, err := replica.Open(replica.Config{Dir: t.TempDir(), ID: "c1", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-r.Leadership():
	case <-time.After(waitLimit):
		t.Fatal("it does not lead")
	}
	term, err := r.BeginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{id: "c1", leadership: newLeadership(), replica: r, stop: make(chan struct{})}
	for begun, refused := range map[uint64]bool{term - 1: true, term: false} {
		g.leadership.begin(begun)
		ctx, release, err := g.enterCall(t.Context(), func() {}, droverv1connect.ClientServiceListJobsProcedure, http.Header{})
		if _, notLeader := wire.LeaderOf(err); notLeader != refused || !refused && (err != nil || termOf(ctx) != term) {
			t.Errorf("term %d has begun, raft is in %d: %v", begun, term, err)
		}
		release()
		g.leadership.end()
	}
}

// Raft refuses entries before leadership knows of the end of the term: a call that fails so is marked too, or a client
// would give up a submission that it may repeat.
func TestErrorsOfALostLeadershipAreMarked(t *testing.T) {
	stopped := fault.New(fault.Unavailable, "this coordinator does not lead: %w", raft.ErrNotLeader) // as replica's
	g := &gate{id: "c1", leadership: newLeadership(), peers: &peers{}, stop: make(chan struct{})}
	g.leadership.begin(3)
	for name, c := range map[string]struct {
		err    error
		term   uint64
		marked bool
	}{
		"refused by raft, the term has not ended":      {stopped, 3, true},
		"refused by raft, the term has ended":          {stopped, 2, true},
		"refused by another, the term has ended":       {fault.New(fault.Unavailable, "no"), 2, true},
		"refused by another, the term has not ended":   {fault.New(fault.Unavailable, "no"), 3, false},
		"what was wrong with the call is said as ever": {fault.New(fault.NotFound, "no"), 2, false},
	} {
		if got := g.markChange(withTerm(t.Context(), c.term), toWireError(c.err)); wire.IsLeaderChanged(got) != c.marked {
			t.Errorf("%s: %v, want marked: %t", name, got, c.marked)
		}
	}
}

// A coordinator that is alone marks the calls that its stop ends, too: who follows something goes on when it is back.
func TestACoordinatorThatIsAloneMarksItsStop(t *testing.T) {
	stop := make(chan struct{})
	g := &gate{id: "c1", leadership: newLeadership(), stop: stop}
	g.leadership.begin(3)
	ctx := withTerm(t.Context(), 3)
	if err := g.markChange(ctx, toWireError(errStreamEnded)); wire.IsLeaderChanged(err) {
		t.Errorf("it leads on: %v", err)
	}
	close(stop)
	if err := g.markChange(ctx, toWireError(errStreamEnded)); !wire.IsLeaderChanged(err) {
		t.Errorf("it stops: %v", err)
	}
}
