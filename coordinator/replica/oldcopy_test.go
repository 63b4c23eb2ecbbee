package replica

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
)

// TestAnOldCopyOfAFolderIsRefused: a server that is started on an old copy of its folder lacks entries that it has
// acknowledged, and might vote for another one that lacks them. The others know it, whether they led it or followed it.
func TestAnOldCopyOfAFolderIsRefused(t *testing.T) {
	for name, led := range map[string]bool{"of a follower": false, "of the leader": true} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			leader := c.propose(0)
			i := (leader + 1) % 3
			until(t, "it has the first", func() bool { return count(c.rs[i]) == 1 })
			start := func() error { return c.start(i, nil) }
			c.stop(i)
			old := filepath.Join(t.TempDir(), "old")
			if err := errors.Join(os.CopyFS(old, os.DirFS(c.dirs[i])), start()); err != nil {
				t.Fatal(err)
			}
			for led && c.awaitLeader() != i {
				x := c.awaitLeader()
				c.stop(x)
				c.awaitLeader()
				if err := c.start(x, nil); err != nil {
					t.Fatal(err)
				}
			}
			for n := range 9 {
				c.propose(n + 1)
			}
			for _, r := range c.rs {
				until(t, "all have them", func() bool { return count(r) == 10 })
			}
			last := c.rs[i].Applied()
			until(t, "another one knows it", func() bool {
				return slices.ContainsFunc(c.rs, func(r *Replica) bool { return r != c.rs[i] && r.Acknowledged(c.peers[i].ID) >= last })
			})
			c.stop(i)

			present := c.dirs[i]
			c.dirs[i] = old
			err := start()
			if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), old) || !strings.Contains(err.Error(), "old copy") || !strings.Contains(err.Error(), "empty") {
				t.Fatalf("started on an old copy: %v", err)
			}
			c.dirs[i] = present
			if err := start(); err != nil {
				t.Fatalf("started on the present one: %v", err)
			}

			// With an empty folder it does not vote, and may be behind what it had.
			c.stop(i)
			c.accepted("it is added again", func(r *Replica) error { return r.Admit(c.peers[i], true) })
			until(t, "nothing is held against it", func() bool { n, _ := c.acknowledged(c.peers); return n == 0 })
			c.dirs[i] = t.TempDir()
			if err := start(); err != nil {
				t.Fatal(err)
			}
			until(t, "it has all again", func() bool { return count(c.rs[i]) == 10 })
		})
	}
}

// What a follower has, and a new leader may have it remove, is not held against it.
func TestWhatAnAnswerAcknowledges(t *testing.T) {
	entries := make([]*raft.Log, 5)
	for name, c := range map[string]struct {
		in      raft.AppendEntriesRequest
		refused bool
		want    uint64
	}{
		"a heartbeat":                     {in: raft.AppendEntriesRequest{}},
		"entries that are not committed":  {in: raft.AppendEntriesRequest{PrevLogEntry: 7, Entries: entries, LeaderCommitIndex: 4}, want: 4},
		"entries of which some are":       {in: raft.AppendEntriesRequest{PrevLogEntry: 7, Entries: entries, LeaderCommitIndex: 9}, want: 9},
		"fewer than are committed":        {in: raft.AppendEntriesRequest{PrevLogEntry: 7, Entries: entries, LeaderCommitIndex: 90}, want: 12},
		"no entries":                      {in: raft.AppendEntriesRequest{PrevLogEntry: 7, LeaderCommitIndex: 90}, want: 7},
		"entries that do not follow its ": {in: raft.AppendEntriesRequest{PrevLogEntry: 7, Entries: entries, LeaderCommitIndex: 90}, refused: true},
	} {
		if got := acknowledgedBy(&c.in, &raft.AppendEntriesResponse{Success: !c.refused}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	var a acknowledgements
	for _, n := range []uint64{4, 9, 0, 5} {
		a.note("c1", n)
	}
	if a.of("c1") != 9 || a.of("c2") != 0 {
		t.Errorf("%d and %d, want 9 and 0", a.of("c1"), a.of("c2"))
	}
}
