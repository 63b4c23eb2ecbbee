package node

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A quiet node sends a burst without waiting, a busy one keeps the gap in the long
// run, and a pause earns no more than one burst.
func TestPacer(t *testing.T) {
	var p pacer
	now := time.Unix(1_000_000, 0)
	for round := range 3 {
		sent, start := 0, now
		for range 100 {
			sent++
			wait := p.next(now)
			if quiet := sent < reportBurst; quiet != (wait <= 0) {
				t.Fatalf("round %d, report %d: wait %v", round, sent, wait)
			}
			if wait > minReportGap {
				t.Fatalf("round %d, report %d: wait %v, more than the gap", round, sent, wait)
			}
			now = now.Add(max(0, wait))
		}
		if took, want := now.Sub(start), (100-reportBurst+1)*minReportGap; took != want {
			t.Errorf("round %d: 100 reports in %v, want %v", round, took, want)
		}
		now = now.Add(time.Hour)
	}
}

// TestNewLeaderGetsAFullReport: a stream that goes on with another leader than the one that registered the node ends the
// session, and so does an answer of that leader to a report.
func TestNewLeaderGetsAFullReport(t *testing.T) {
	for name, byReport := range map[string]bool{"stream": false, "report": true} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.start()
			old, changing := groupTask(0, "hang"), groupTask(1, "hang")
			b.put(old)
			b.await(t, old, running)
			fulls, registrations := b.fullReports(), b.registered()
			b.mu.Lock()
			b.term++
			b.oldReports = !byReport
			clear(b.seen) // it knows nothing
			b.mu.Unlock()
			if !byReport {
				b.put(changing)
			}
			poll(t, "another full report", func() bool { return b.fullReports() > fulls })
			b.await(t, old, running)
			if !byReport {
				b.await(t, changing, running)
			}
			if n := b.registered(); n != registrations+1 {
				t.Errorf("%d registrations with the new leader", n-registrations)
			}
		})
	}
}

// TestARegistrationThatIsSentAgainHasItsToken: the coordinator knows by it that its answer was lost. The next registration has
// another one, and so has the next daemon. The daemon's id is that of its data folder, on its machine: a copy of the folder elsewhere
// has another one, and says why.
func TestARegistrationThatIsSentAgainHasItsToken(t *testing.T) {
	b := newTestNode(t, programs())
	b.config.machineID = "first"
	b.loseAnswers = true
	wait := b.startOnly()
	poll(t, "three registrations without an answer", func() bool { return b.registered() >= 3 })
	b.mu.Lock()
	b.loseAnswers = false
	b.mu.Unlock()
	wait()
	b.mu.Lock()
	first, id := b.tokens, b.node.GetDaemonId()
	b.registerAgain = true
	b.mu.Unlock()
	if first[0] == "" || slices.ContainsFunc(first, func(s string) bool { return s != first[0] }) {
		t.Errorf("the tokens of one registration are %q", first)
	}
	poll(t, "the next registration", func() bool { return b.registered() > len(first) })
	b.stopDaemon()
	before := b.registered()
	b.start()
	b.mu.Lock()
	all, again := slices.Clone(b.tokens), b.node.GetDaemonId()
	b.mu.Unlock()
	if second, third := all[len(first)], all[before]; second == first[0] || third == second || second == "" || third == "" {
		t.Errorf("the tokens of three registrations are %q, %q and %q", first[0], second, third)
	}
	ids := []string{id, again}
	for _, next := range []struct {
		data, machine string
		copied        bool
	}{{b.config.Data, "second", true}, {filepath.Join(t.TempDir(), "another"), "second", false}} {
		b.stopDaemon()
		log := &sharedLog{}
		b.config.Log, b.config.Data, b.config.machineID = slog.New(slog.NewTextHandler(log, nil)), next.data, next.machine
		b.start()
		b.mu.Lock()
		ids = append(ids, b.node.GetDaemonId())
		b.mu.Unlock()
		if log.contains("copy of that of another machine") != next.copied {
			t.Errorf("in %s on machine %s it says that the folder is a copy: %t", next.data, next.machine, !next.copied)
		}
	}
	if copied, other := ids[2], ids[3]; id == "" || again != id || copied == id || copied == "" || other == id || other == copied || other == "" {
		t.Errorf("the ids of the daemon, the next one, one on another machine and one with another data folder are %q", ids)
	}
}
