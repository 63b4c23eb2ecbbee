package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/internal/version"
)

// Exit codes, for scripts.
const (
	exitOK          = 0 // succeeded
	exitFailed      = 1 // the job failed, or any other error
	exitUsage       = 2 // the command line is wrong
	exitRefused     = 3 // the request was refused: bad job file, unknown name, not allowed, conflict
	exitUnavailable = 4 // no coordinator or node answers
	exitStopped     = 5 // the job was stopped
	exitDetached    = 6 // Ctrl-C: the command ended, and the job or what was requested goes on
)

// exitError is an error with its own exit code.
type exitError struct {
	code int
	err  error
}

func (c exitError) Error() string {
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

func (c exitError) Unwrap() error { return c.err }

func usageErrorf(format string, args ...any) error {
	return exitError{exitUsage, fmt.Errorf(format, args...)}
}

// requireFlags returns a usage error if one of the flags is missing.
func requireFlags(c *cli.Context, flags ...string) error {
	for _, f := range flags {
		if !c.IsSet(f) {
			return usageErrorf("-%s is missing; `drover %s -h` lists the flags", f, commandPath(c))
		}
	}
	return nil
}

// countFlag returns the value of a flag that says how many to show, which a request carries
// as an int32, or a usage error that names its range.
func countFlag(c *cli.Context, name string, most int) (int32, error) {
	n := c.Int(name)
	if n < 0 || n > most {
		return 0, usageErrorf("-%s %d: want a number from 0 to %d", name, n, most)
	}
	return int32(n), nil
}

// exitCode returns the process's exit code for an error of a command.
func exitCode(err error) int {
	var c exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.Is(err, fault.Unavailable):
		return exitUnavailable
	case fault.Class(err) != nil:
		return exitRefused
	default:
		return exitFailed
	}
}

// newApp builds the command tree.
func newApp(stdin io.Reader, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:                   "drover",
		Usage:                  "run batch jobs of many tenants on your own machines",
		Version:                version.Version,
		HideVersion:            true,
		EnableBashCompletion:   true,
		UseShortOptionHandling: true,
		Reader:                 stdin,
		Writer:                 plain.NewWriter(stdout),
		ErrWriter:              plain.NewWriter(stderr),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "address", Usage: "coordinator: unix:///path or https://host:port; of several, separated by commas, the one that leads is found", EnvVars: []string{"DROVER_ADDRESS"}, Value: defaultAddress},
			&cli.BoolFlag{Name: staleFlag, Usage: "also read from a coordinator that does not lead: what it shows may be old"},
			&cli.StringFlag{Name: "tls-ca", Usage: "CA certificate of the cluster", EnvVars: []string{"DROVER_TLS_CA"}},
			&cli.StringFlag{Name: "tls-cert", Usage: "your certificate", EnvVars: []string{"DROVER_TLS_CERT"}},
			&cli.StringFlag{Name: "tls-key", Usage: "your key", EnvVars: []string{"DROVER_TLS_KEY"}},
			&cli.StringFlag{Name: tokenFileFlag, Usage: "file with a token, which serves instead of -tls-cert and -tls-key ('drover token create'); a token may also be in DROVER_TOKEN", EnvVars: []string{"DROVER_TOKEN_FILE"}, TakesFile: true},
			&cli.BoolFlag{Name: "no-color", Usage: "plain text", EnvVars: []string{"NO_COLOR"}},
			cli.HelpFlag, // the library adds it only beside a command help of its own
		},
		Commands: commands(),
		OnUsageError: func(c *cli.Context, err error, sub bool) error {
			return usageErrorf("%s; `drover -h` lists the flags", flagHint(err, c))
		},
		ExitErrHandler: func(*cli.Context, error) {}, // main sets the exit code
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usageErrorf("%s", unknownCommand(c, c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		setCommandDefaults(c)
	}
	app.Commands = append(app.Commands, helpCommand(app.Commands, nil))
	return app
}

// commands returns the command tree in the order of the help text.
func commands() []*cli.Command {
	return []*cli.Command{
		jobCommand(),
		taskCommand(),
		nodeCommand(),
		tenantCommand(),
		schedulerCommand(),
		simCommand(),
		eventsCommand(),
		monitorCommand(),
		usageCommand(),
		statusCommand(),
		uiCommand(),
		devCommand(),
		coordinatorCommand(),
		operatorCommand(),
		tlsCommand(),
		tokenCommand(),
		loginCommand(),
		secretCommand(),
		configCommand(),
		doctorCommand(),
		benchCommand(),
		completionCommand(),
		manCommand(),
		completeCommand(),
		versionCommand(),
	}
}

// setCommandDefaults gives every command the common error handling, and every group a command help;
// a group that is called without a command prints its help. The library would add help to every
// command, and treat an argument called help or h, for example a job of that name, as that command.
func setCommandDefaults(c *cli.Command, path ...string) {
	path = append(slices.Clip(path), c.Name)
	c.HideHelpCommand = true
	c.OnUsageError = func(ctx *cli.Context, err error, _ bool) error {
		return usageErrorf("%s; `drover %s -h` lists the flags", flagHint(err, ctx), commandPath(ctx))
	}
	for _, s := range c.Subcommands {
		setCommandDefaults(s, path...)
	}
	if len(c.Subcommands) > 0 {
		c.Subcommands = append(c.Subcommands, helpCommand(c.Subcommands, path))
	}
	if len(c.Subcommands) > 0 && c.Action == nil {
		c.Action = func(ctx *cli.Context) error {
			if ctx.Args().Present() {
				return usageErrorf("%s", unknownCommand(ctx, ctx.Args().First()))
			}
			return cli.ShowSubcommandHelp(ctx)
		}
	}
}

func commandPath(c *cli.Context) string {
	var names []string
	for _, l := range c.Lineage() {
		if l.Command != nil && l.Command.Name != "" && l.Command.Name != "drover" && (len(names) == 0 || names[0] != l.Command.Name) {
			names = append([]string{l.Command.Name}, names...)
		}
	}
	return strings.Join(names, " ")
}

// valueText returns " VALUE" for a flag of the command that takes a value.
func valueText(c *cli.Context, flag string) string {
	name := strings.TrimLeft(flag, "-")
	for _, f := range c.Command.Flags {
		if d, ok := f.(cli.DocGenerationFlag); ok && slices.Contains(f.Names(), name) && d.TakesValue() {
			return " VALUE"
		}
	}
	return ""
}

// positionalArgs checks the number of arguments. It refuses flags among them, which
// the parser would silently treat as arguments.
func positionalArgs(c *cli.Context, least, most int, what string) ([]string, error) {
	all := c.Args().Slice()
	for i, a := range all {
		if strings.HasPrefix(a, "-") && a != "-" {
			return nil, usageErrorf("flag %s stands after the argument %q: put flags first, as in `drover %s %s %s`", a, all[max(0, i-1)], commandPath(c), a+valueText(c, a), what)
		}
	}
	if len(all) < least || len(all) > most {
		return nil, usageErrorf("want `drover %s`", strings.TrimSpace(commandPath(c)+" [flags] "+what))
	}
	return all, nil
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	w = rawWriter(w)
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// rawWriter returns the writer below the one that escapes control characters, for
// progress bars, colours, and the exact bytes of a task's output.
func rawWriter(w io.Writer) io.Writer {
	if p, ok := w.(*plain.Writer); ok {
		return p.Unwrap()
	}
	return w
}

// taskWriter returns where a task's own output goes: its exact bytes into a file or
// pipe, or with raw; as text on a terminal, which a task must not control.
func taskWriter(w io.Writer, raw bool) io.Writer {
	if raw || !isTerminal(w) {
		return rawWriter(w)
	}
	return w
}
