package coordinator

import (
	"net/http"
	"testing"
	"time"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/replica"
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
