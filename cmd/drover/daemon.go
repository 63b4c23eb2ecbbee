package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/systemd"
)

// defaultScheduler is the initial policy.
const defaultScheduler = "3dsf"

// schedulerFlags configure the policy of a coordinator.
var schedulerFlags = []cli.Flag{
	&cli.StringFlag{Name: "scheduler", Value: defaultScheduler, Usage: "initial policy (drover scheduler status lists them)"},
	&cli.StringSliceFlag{Name: "set", Usage: "parameter of the policy as key=value, repeatable"},
}

// logLevelFlag chooses what a daemon logs.
var logLevelFlag = &cli.StringFlag{Name: "log-level", Value: "warn", Usage: "error, warn, info or debug: log records of this level and above"}

var logLevels = map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug}

// checkLogLevel refuses a level that does not exist.
func checkLogLevel(c *cli.Context) error {
	if _, ok := logLevels[c.String(logLevelFlag.Name)]; !ok {
		return usageErrorf("-log-level %q: want error, warn, info or debug", c.String(logLevelFlag.Name))
	}
	return nil
}

// logLevel is the level of the flags; -verbose asks for info at least.
func logLevel(c *cli.Context) slog.Level {
	level := logLevels[c.String(logLevelFlag.Name)]
	if c.Bool("verbose") {
		level = min(level, slog.LevelInfo)
	}
	return level
}

// newDaemonLogger writes a daemon's log to standard error, warnings only unless
// verbose.
func newDaemonLogger(c *cli.Context, verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level}))
}

// daemon is what coordinator and node have in common as services: a log whose
// level can change, certificates that can be replaced, and systemd.
type daemon struct {
	c       *cli.Context
	check   func(*cli.Context) error // of its settings
	level   *slog.LevelVar
	log     *slog.Logger
	recent  *diagnosis.Log // of log, for operators to follow
	said    slog.Handler   // what is said once, whatever the level of the log; nil where nobody but a terminal reads it
	certs   *pki.Member    // nil without certificates
	hangups chan os.Signal
}

// newDaemon makes the service of the command of this name. It checks the settings before anything
// is opened or changed.
func newDaemon(c *cli.Context, name string, check func(*cli.Context) error) (*daemon, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	noCoreDumps()
	d := &daemon{c: c, check: check, level: new(slog.LevelVar), recent: diagnosis.NewLog(), hangups: make(chan os.Signal, 1)}
	d.level.Set(logLevel(c))
	d.log = slog.New(d.recent.Handler(newServiceHandler(c.App.ErrWriter, d.level, "drover-"+name)))
	if systemd.LogsToJournal() {
		d.said = newServiceHandler(c.App.ErrWriter, slog.LevelInfo, "drover-"+name)
	}
	if files := tlsFiles(c); files.Cert != "" {
		var err error
		if d.certs, err = files.Open(pki.Kind(name)); err != nil {
			return nil, err
		}
	}
	signal.Notify(d.hangups, syscall.SIGHUP) // before systemd may send one
	return d, nil
}

// newServiceHandler writes records to the journal with their fields where
// standard error goes there, else as text.
func newServiceHandler(w io.Writer, level slog.Leveler, identifier string) slog.Handler {
	text := slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	if !systemd.LogsToJournal() {
		return text
	}
	return systemd.NewJournalHandler(level, identifier, ownUnit(), text)
}

// ownUnit is the systemd service that this process was started as, or "". The node
// daemon asks before it goes into the cgroup of the tasks.
func ownUnit() string {
	own, err := cgroups.OwnCgroup()
	if err != nil || !strings.HasSuffix(own, ".service") {
		return ""
	}
	return path.Base(own)
}

// ready says to the user or systemd that the daemon is up. A line on standard error
// would be filed under the unit whose cgroup the process is in by then, which is not
// the node daemon's own.
func (d *daemon) ready(text string) {
	line := "ready: " + text
	if d.said == nil || d.said.Handle(d.c.Context, slog.NewRecord(time.Now(), slog.LevelInfo, line, 0)) != nil {
		fmt.Fprintln(d.c.App.ErrWriter, line)
	}
	d.notified(systemd.Ready(text))
}

func (d *daemon) notified(err error) {
	if err != nil {
		d.log.Warn("systemd was not told", "err", err)
	}
}

// run runs the daemon, and reloads on each SIGHUP until it ends. apply gets the
// settings that were read anew, after the common part of them is in force.
func (d *daemon) run(run func(context.Context) error, apply func(*cli.Context)) error {
	ctx, cancel := context.WithCancel(d.c.Context)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopping := d.c.Done()
	for {
		select {
		case err := <-ended:
			signal.Stop(d.hangups)
			return err
		case <-stopping:
			d.notified(systemd.Stopping("leaving"))
			stopping = nil
		case <-d.hangups:
			d.reload(apply)
		}
	}
}

// reload reads the settings again. Where they are wrong, everything stays as it is.
func (d *daemon) reload(apply func(*cli.Context)) {
	d.notified(systemd.Reloading())
	status := "reloaded"
	if err := d.applyReload(apply); err != nil {
		d.log.Error("not reloaded, everything stays as it is", "err", err)
		status = "not reloaded: " + err.Error()
	} else {
		d.log.Info("reloaded", "level", d.level.Level())
	}
	d.notified(systemd.Ready(status))
}

func (d *daemon) applyReload(apply func(*cli.Context)) error {
	next, err := parseSettings(os.Args[1:])
	if err != nil {
		return err
	}
	if err := d.check(next); err != nil {
		return err
	}
	applied := reloadable
	if files := tlsFiles(next); d.certs != nil && files.Cert != "" && files.Key != "" {
		if err := d.certs.ReloadFrom(files.Cert, files.Key); err != nil {
			return err
		}
		applied = slices.Concat(applied, []string{"tls-cert", "tls-key"})
	}
	if names := needRestart(d.c, next, applied); len(names) > 0 {
		d.log.Warn("changed settings that need a restart", "settings", strings.Join(names, ", "))
	}
	d.level.Set(logLevel(next))
	apply(next)
	return nil
}

// reloadable are the settings that each reload puts in force.
var reloadable = []string{logLevelFlag.Name, "verbose", "scheduler", "set"}

// needRestart lists the settings that differ and were not applied.
func needRestart(before, after *cli.Context, applied []string) []string {
	var names []string
	for _, f := range fileFlags(before.Command) {
		name := f.Names()[0]
		if !slices.Contains(applied, name) && fmt.Sprint(flagText(before, f)) != fmt.Sprint(flagText(after, f)) {
			names = append(names, settingName(name))
		}
	}
	return names
}

// flagText is the value of a flag, to be compared.
func flagText(c *cli.Context, f cli.Flag) any {
	name := f.Names()[0]
	if _, list := f.(*cli.StringSliceFlag); list {
		return c.StringSlice(name)
	}
	return c.Value(name)
}

// parseSettings parses a daemon's command line with its configuration file, and
// runs nothing.
func parseSettings(args []string) (*cli.Context, error) {
	var got *cli.Context
	app := newApp(strings.NewReader(""), io.Discard, io.Discard)
	for _, c := range app.Commands {
		if c.Name == "coordinator" || c.Name == "node" {
			c.Action = withConfig(func(c *cli.Context) error { got = c; return nil })
		}
	}
	if err := app.Run(append([]string{"drover"}, args...)); err != nil {
		return nil, err
	}
	if got == nil {
		return nil, usageErrorf("%q runs neither coordinator nor node", strings.Join(args, " "))
	}
	return got, nil
}

// listenTCP opens a daemon's port.
func listenTCP(at string) (net.Listener, error) {
	l, err := net.Listen("tcp", at)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.New(fault.Conflict, "-listen %s: another process has this port: `ss -ltnp` shows which; stop it or choose another port", at)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fault.New(fault.Conflict, "-listen %s: this machine does not have that address: `ip addr` shows those it has", at)
	case err != nil:
		return nil, fault.New(fault.Invalid, "-listen %s: %w", at, err)
	}
	return l, nil
}
