package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// A node that has never been in the cluster ends beside a coordinator whose protocol
// it does not support, and starts beside one that is upgraded.
func TestNewNodeRefusesADistantCoordinator(t *testing.T) {
	b := newTestNode(t, nil)
	b.protocol = version.Protocol + 2
	err := Run(t.Context(), b.config)
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "the coordinator has protocol") || !strings.HasSuffix(err.Error(), "upgrade this node") {
		t.Fatalf("the daemon ended with %v", err)
	}
	b.setProtocol(version.Protocol + 1)
	b.start()
}

// A node whose coordinator becomes a distant one keeps its tasks and waits.
func TestKnownNodeWaitsForANeighbour(t *testing.T) {
	b, _ := newLevelTestNode(t)
	b.start()
	w := groupTask(0, "count")
	b.put(w)
	b.await(t, w, running)
	before := b.setProtocol(version.Protocol + 2)
	poll(t, "registrations after the upgrade", func() bool { return b.registered() >= before+3 })
	b.awaitCounting(w)
	b.setProtocol(version.Protocol + 1)
	other := groupTask(1, "count")
	b.put(other)
	b.await(t, other, running)
	if s := b.get(w); s.GetPhase() != running {
		t.Errorf("the task is %s", s.GetPhase())
	}
	b.awaitCounting(w)
}
