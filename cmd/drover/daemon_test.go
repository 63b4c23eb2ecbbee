package main

import (
	"bytes"
	"flag"
	"log/slog"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
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
