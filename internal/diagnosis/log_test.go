package diagnosis

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// text returns a record as one line.
func text(l *Log, n int) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.recentLocked(n) {
		line := r.Level + " " + r.Message
		for _, a := range r.Attributes {
			line += " " + a.Key + "=" + a.Value
		}
		out = append(out, line)
	}
	return out
}

func TestHandler(t *testing.T) {
	var written bytes.Buffer
	l := NewLog()
	log := slog.New(l.Handler(slog.NewTextHandler(&written, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.Debug("too fine")
	log.Info("one", "n", 1, slog.Group("g", "a", "x", "b", "y"))
	log.With("job", 7).WithGroup("node").Warn("two", "name", "n\n1\x1b[31m", "err", fmt.Errorf("broken"))
	want := []string{"INFO one n=1 g.a=x g.b=y", `WARN two job=7 node.name=n\u000a1\u001b[31m node.err=broken`}
	if got := text(l, 10); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("kept %q, want %q", got, want)
	}
	if s := written.String(); strings.Contains(s, "one") || !strings.Contains(s, "two") {
		t.Errorf("the log has %q, want the warning alone", s)
	}
}

func TestRecentIsBounded(t *testing.T) {
	l := NewLog()
	log := slog.New(l.Handler(slog.DiscardHandler))
	for i := range keptRecords + 5 {
		log.Info(fmt.Sprint(i))
	}
	got := text(l, keptRecords*2)
	if len(got) != keptRecords || got[0] != "INFO 5" || got[len(got)-1] != fmt.Sprintf("INFO %d", keptRecords+4) {
		t.Errorf("%d records from %q to %q", len(got), got[0], got[len(got)-1])
	}
	if got := text(l, 1); len(got) != 1 || got[0] != fmt.Sprintf("INFO %d", keptRecords+4) {
		t.Errorf("the last one is %q", got)
	}
	log.Info(strings.Repeat("x", 3*maxText))
	if got := text(l, 1); len(got[0]) > maxText+16 {
		t.Errorf("a message of %d bytes was kept", len(got[0]))
	}
}

func TestFollowers(t *testing.T) {
	l := NewLog()
	log := slog.New(l.Handler(slog.DiscardHandler))
	if log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug records are made though nobody follows")
	}
	_, slow := l.follow(slog.LevelDebug, 0)
	_, warnings := l.follow(slog.LevelWarn, 0)
	for range followerQueue + 3 {
		log.Debug("fine")
	}
	if n := len(warnings.records); n != 0 {
		t.Errorf("the follower of warnings got %d debug records", n)
	}
	<-slow.records
	log.Debug("after")
	for range followerQueue - 1 {
		<-slow.records
	}
	if r := <-slow.records; r.Message != "after" || r.Dropped != 3 {
		t.Errorf("got %q after %d dropped, want \"after\" and 3", r.Message, r.Dropped)
	}
	l.leave(slow)
	if log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug records are made though their follower has left")
	}
	for range maxFollowers - 1 {
		if _, f := l.follow(slog.LevelInfo, 0); f == nil {
			t.Fatal("too few followers")
		}
	}
	if _, f := l.follow(slog.LevelInfo, 0); f != nil {
		t.Errorf("more than %d followers", maxFollowers)
	}
}
