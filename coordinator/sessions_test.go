package coordinator

import (
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Once the leader has looked at the leases and found one that has ended, it starts the node's tasks elsewhere. Nothing that
// the node says in that epoch may grant it a lease again: neither before nor after its loss is in the facts.
func TestAnEndedLeaseIsNotRenewed(t *testing.T) {
	const (
		node  = 3
		epoch = 7
		lease = 15 * time.Second
	)
	start := time.Unix(1000, 0)
	at := start.Add(lease)
	report := func(epoch uint64) *droverv1.ReportRequest {
		return &droverv1.ReportRequest{Node: node, Epoch: epoch}
	}
	s := newSessions()
	check := func(when string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: a lease is %v, want %v", when, got, want)
		}
	}
	gone := func(when string, want int) {
		t.Helper()
		if got, _ := s.endLeases(at, lease); len(got) != want {
			t.Errorf("%s: %d nodes are to be declared lost, want %d", when, len(got), want)
		}
	}
	check("a report without a session", s.report(report(epoch), start), false)
	check("a registration", s.register(node, epoch, start), true)
	check("a report", s.report(report(epoch), start), true)
	check("a report of an earlier epoch", s.report(report(epoch-1), start), false)
	gone("at the end of the lease", 1)
	check("a report before the loss is declared", s.report(report(epoch), at), false)
	check("a registration before the loss is declared", s.register(node, epoch, at), false)
	gone("until it is declared", 1)
	s.end(node, epoch)
	gone("once it is declared", 0)
	check("a report that began before", s.report(report(epoch), at), false)
	check("a registration that began before", s.register(node, epoch, at), false)
	s.open(node, epoch+1, at)
	check("a report in the next epoch", s.report(report(epoch+1), at), true)
	s.end(node, epoch) // the loop learns late of the loss
	check("a registration in the next epoch", s.register(node, epoch+1, at), true)
	check("a registration of an earlier epoch", s.register(node, epoch, at), false)
}
