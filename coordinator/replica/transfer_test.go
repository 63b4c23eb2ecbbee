package replica

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
)

func TestNoSecondTransferAfterOneThatFailed(t *testing.T) {
	for name, c := range map[string]struct {
		failed  []string // servers to which a transfer has failed in term 3
		term    uint64
		to      string
		refused bool
	}{
		"the first one":                               {nil, 3, "c2", false},
		"the first one, to whom raft chooses":         {nil, 3, "", false},
		"again to the same":                           {[]string{"c2"}, 3, "c2", true},
		"to another one":                              {[]string{"c2"}, 3, "c3", false},
		"to whom raft chooses, perhaps the same":      {[]string{"c2"}, 3, "", true},
		"to any after one to whom raft chose":         {[]string{""}, 3, "c2", true},
		"again to the same, in another term":          {[]string{"c2"}, 5, "c2", false},
		"to whom raft chooses again, in another term": {[]string{""}, 5, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var x transfers
			if err := x.check(3, "c2"); err != nil {
				t.Fatal(err)
			}
			for _, id := range c.failed {
				x.failed[id] = true
			}
			if err := x.check(c.term, c.to); errors.Is(err, fault.Conflict) != c.refused || (err != nil) != c.refused {
				t.Errorf("%v, want refused: %t", err, c.refused)
			}
		})
	}
}

// TestFailedTransfersAreNamed: who asks for the next one, also by removing the leader, reads which server
// failed and what to do.
func TestFailedTransfersAreNamed(t *testing.T) {
	x := transfers{term: 3, failed: map[string]bool{"c3": true}}
	for name, err := range map[string]error{
		"the one that fails":              transferFailed("c3", errors.New("timeout")),
		"the same again":                  x.check(3, "c3"),
		"one to the server that is ahead": x.check(3, ""),
	} {
		if err == nil || !strings.Contains(err.Error(), "c3") || !strings.Contains(err.Error(), "drover operator server") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsOfALostLeadershipAreKnown(t *testing.T) {
	for _, err := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress, raft.ErrRaftShutdown} {
		if c := classifyRaftError(err); !LedNoMore(c) || !errors.Is(c, fault.Unavailable) {
			t.Errorf("%v: it is not known that it led no more", c)
		}
	}
	for _, err := range []error{raft.ErrEnqueueTimeout, raft.ErrAbortedByRestore, raft.ErrNothingNewToSnapshot, nil} {
		if c := classifyRaftError(err); LedNoMore(c) {
			t.Errorf("%v: it leads on", c)
		}
	}
}
