package systemd

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
)

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	for _, s := range []struct {
		send func() error
		want string
	}{
		{func() error { return Ready("leads\nwith 3 nodes") }, "READY=1\nSTATUS=leads with 3 nodes"},
		{Reloading, "RELOADING=1\nMONOTONIC_USEC="},
		{func() error { return Stopping("bye") }, "STOPPING=1\nSTATUS=bye"},
	} {
		if err := s.send(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1000)
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := c.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), s.want) {
			t.Errorf("systemd was sent %q (%v), want %q", buf[:n], err, s.want)
		}
	}
}

func TestNotifyWithoutSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Ready("x"); err != nil {
		t.Error(err)
	}
}

type sent struct {
	Message  string
	Priority journal.Priority
	Fields   map[string]string
}

func TestJournalRecords(t *testing.T) {
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	h := NewJournalHandler(level, "drover-node", "drover-node.service", slog.DiscardHandler)
	var got []sent
	h.send = func(m string, p journal.Priority, f map[string]string) error {
		got = append(got, sent{m, p, f})
		return nil
	}
	log := slog.New(h)
	log.Info("not shown")
	log.With("attempt", "1.0.0.1.1").WithGroup("disk").Warn("slow\nwrite", "took", 2*time.Second, slog.Group("at", "offset", 7))
	level.Set(slog.LevelDebug)
	log.Debug("shown now", "msg", "not the message")
	fixed := map[string]string{"SYSLOG_IDENTIFIER": "drover-node", "OBJECT_SYSTEMD_UNIT": "drover-node.service"}
	with := func(more map[string]string) map[string]string {
		for k, v := range fixed {
			more[k] = v
		}
		return more
	}
	want := []sent{
		{"slow\nwrite attempt=1.0.0.1.1 disk.took=2s disk.at.offset=7", journal.PriWarning,
			with(map[string]string{"DROVER_ATTEMPT": "1.0.0.1.1", "DROVER_DISK_TOOK": "2s", "DROVER_DISK_AT_OFFSET": "7"})},
		{"shown now msg_=\"not the message\"", journal.PriDebug, with(map[string]string{"DROVER_MSG": "not the message"})},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Records that journald does not accept are not lost.
func TestJournalUnreachable(t *testing.T) {
	var b bytes.Buffer
	h := NewJournalHandler(slog.LevelInfo, "x", "", slog.NewTextHandler(&b, nil))
	h.send = func(string, journal.Priority, map[string]string) error { return errors.New("no socket") }
	slog.New(h).With("a", 1).Info("here", "b", 2)
	if !strings.Contains(b.String(), "msg=here a=1 b=2") {
		t.Errorf("standard error has %q", b.String())
	}
}
