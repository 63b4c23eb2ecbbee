package replica

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

// TestRaftRepeatsItselfOnceAMinute: a server that is away for an hour is a line a minute, not two a second, and
// another server that is away as well has its own lines.
func TestRaftRepeatsItselfOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	w := newRaftLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), func() time.Time { return now })
	for i := range 2 * 60 * 60 {
		for _, peer := range []string{"10.0.0.2:7102", "10.0.0.3:7102"} {
			fmt.Fprintf(w, "[ERROR] raft: failed to heartbeat to: peer=%s backoff time=%dms error=\"connection refused\"\n", peer, i)
		}
		now = now.Add(500 * time.Millisecond)
	}
	for _, peer := range []string{"10.0.0.2:7102", "10.0.0.3:7102"} {
		if n := strings.Count(out.String(), peer); n != 60 {
			t.Errorf("%d lines of %s in an hour, want 60", n, peer)
		}
	}
	if n := strings.Count(out.String(), "more_like_it=119"); n != 2*59 {
		t.Errorf("%d lines say how many there were, want %d", n, 2*59)
	}
	fmt.Fprintln(w, "[WARN]  raft: heartbeat timeout reached, starting election")
	if !strings.Contains(out.String(), "starting election") {
		t.Error("another line is not there")
	}
}

// TestAnEndingServerDoesNotBlameItsPort: what raft says of connections that this server closed is for debugging alone.
func TestAnEndingServerDoesNotBlameItsPort(t *testing.T) {
	var out bytes.Buffer
	w := newRaftLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})), time.Now)
	fmt.Fprintf(w, "[ERROR] raft: failed to accept connection: error=%q\n", net.ErrClosed.Error())
	if out.Len() > 0 {
		t.Error(out.String())
	}
	fmt.Fprintln(w, `[ERROR] raft: failed to accept connection: error="too many open files"`)
	if !strings.Contains(out.String(), "too many open files") {
		t.Error("another error is not there")
	}
}
