package main

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/pki"
)

// The line that says that a daemon is up goes to the journal under the daemon's own
// unit where there is a journal, whatever its log level, else to standard error.
func TestReadyIsSaidOnce(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	for _, s := range []struct {
		name    string
		journal bool
	}{{"with a journal", true}, {"without one", false}} {
		t.Run(s.name, func(t *testing.T) {
			var stderr, journal bytes.Buffer
			app := cli.NewApp()
			app.ErrWriter = &stderr
			d := &daemon{c: cli.NewContext(app, flag.NewFlagSet("node", flag.ContinueOnError), nil), log: slog.New(slog.DiscardHandler)}
			if s.journal {
				d.said = slog.NewTextHandler(&journal, nil)
			}
			d.ready("node n1 at 192.0.2.1:7101")
			const line = "ready: node n1 at 192.0.2.1:7101"
			if strings.Contains(journal.String(), line) != s.journal || strings.Contains(stderr.String(), line) == s.journal {
				t.Errorf("the journal got %q, standard error %q", &journal, &stderr)
			}
		})
	}
}

// TestOneOfSeveralCoordinatorsIsReadyAlone: for systemd a coordinator that waits for the others is up, so that they can
// be started one after another. It says "ready:" only when there is a leader.
func TestOneOfSeveralCoordinatorsIsReadyAlone(t *testing.T) {
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(pki.CreateCA(dir, time.Now()), pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindCoordinator, Name: "c2", Hosts: []string{"127.0.0.1"}, Lifetime: time.Hour}, time.Now())); err != nil {
		t.Fatal(err)
	}
	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notices.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	cmd := &exec.Cmd{Path: self, Stderr: log, Env: append(os.Environ(), "NOTIFY_SOCKET="+at("notify")), Args: []string{"drover", "coordinator", "-id", "c2", "-data", at("data"), "-socket", at("s"),
		"-peer-listen", "127.0.0.1:0", "-join", "127.0.0.1:1", "-tls-ca", at("ca.pem"), "-tls-cert", at("c2.pem"), "-tls-key", at("c2.key")}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	if err := notices.SetReadDeadline(time.Now().Add(stepLimit)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<10)
	n, err := notices.Read(b)
	if err != nil {
		t.Fatalf("systemd is not told: %v\n%s", err, log)
	}
	if text := string(b[:n]); !strings.Contains(text, "READY=1") || !strings.Contains(text, "waits for the other coordinators") {
		t.Errorf("systemd is told %q", text)
	}
	waitFor(t, "it waits for the others", func() bool { return strings.Contains(log.String(), "not in a cluster yet") }, log.String)
	if strings.Contains(log.String(), "ready:") {
		t.Errorf("it has no leader and says so\n%s", log)
	}
}
