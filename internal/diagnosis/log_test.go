package diagnosis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
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

func followAt(t *testing.T, l *Log, level slog.Level) *follower {
	t.Helper()
	_, _, f, err := l.follow(level, &droverv1.MonitorRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A caller that passes the position of a record gets the records after it: by number from the same
// daemon, by time from another one.
func TestPositions(t *testing.T) {
	l, other := NewLog(), NewLog()
	add := func(l *Log, at int64, level slog.Level) {
		l.add(level, &droverv1.LogRecord{AtUs: at, Message: fmt.Sprint(level.String(), at)})
	}
	after := func(l *Log, level slog.Level, position string) (out []string) {
		t.Helper()
		list, _, f, err := l.follow(level, &droverv1.MonitorRequest{Recent: 1, After: position})
		if err != nil {
			t.Fatal(err)
		}
		l.leave(f)
		for _, r := range list {
			out = append(out, r.Message)
		}
		return out
	}
	_, begin, f, err := l.follow(slog.LevelInfo, &droverv1.MonitorRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for at := range int64(4) {
		add(l, 10, slog.LevelInfo) // all at the same time
		add(l, 20+at, slog.LevelWarn)
		add(other, 20+at, slog.LevelInfo)
	}
	third := ""
	for range 3 {
		third = (<-f.records).Position
	}
	for name, c := range map[string]struct {
		got  []string
		want string
	}{
		"from the beginning":         {after(l, slog.LevelWarn, begin), "[WARN20 WARN21 WARN22 WARN23]"},
		"the rest":                   {after(l, slog.LevelInfo, third), "[WARN21 INFO10 WARN22 INFO10 WARN23]"},
		"the rest of a level":        {after(l, slog.LevelWarn, third), "[WARN21 WARN22 WARN23]"},
		"the newer ones of another":  {after(other, slog.LevelInfo, position{l.instance, 99, 21}.String()), "[INFO22 INFO23]"},
		"without a position, recent": {after(l, slog.LevelInfo, ""), "[WARN23]"},
	} {
		if got := fmt.Sprint(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if _, _, _, err := l.follow(slog.LevelInfo, &droverv1.MonitorRequest{After: "x"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("position x: %v", err)
	}
}

func TestFollowers(t *testing.T) {
	l := NewLog()
	log := slog.New(l.Handler(slog.DiscardHandler))
	if log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("debug records are made though nobody follows")
	}
	slow, warnings := followAt(t, l, slog.LevelDebug), followAt(t, l, slog.LevelWarn)
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
		followAt(t, l, slog.LevelInfo)
	}
	if _, _, _, err := l.follow(slog.LevelInfo, &droverv1.MonitorRequest{}); !errors.Is(err, fault.Overloaded) {
		t.Errorf("more than %d followers: %v", maxFollowers, err)
	}
}
