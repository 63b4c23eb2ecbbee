package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// Exit codes, for scripts.
const (
	exitOK          = 0
	exitFailed      = 1 // the job failed, or an error of no other kind
	exitUsage       = 2 // the command line is wrong
	exitRefused     = 3 // the request is: bad job file, unknown name, not allowed, conflict
	exitUnavailable = 4 // no coordinator or node answers
	exitStopped     = 5 // the job was stopped
)

// coded is an error with an exit code of its own.
type coded struct {
	code int
	err  error
}

func (c coded) Error() string {
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

func (c coded) Unwrap() error { return c.err }

func usage(format string, args ...any) error {
	return coded{exitUsage, fmt.Errorf(format, args...)}
}

// need refuses a command line that lacks one of the flags.
func need(c *cli.Context, flags ...string) error {
	for _, f := range flags {
		if !c.IsSet(f) {
			return usage("-%s is missing; `drover %s -h` lists the flags", f, fullName(c))
		}
	}
	return nil
}

// exitCode gives the process's exit code for an error of a command.
func exitCode(err error) int {
	var c coded
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
		Writer:                 stdout,
		ErrWriter:              stderr,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "address", Usage: "coordinator: unix:///path or https://host:port", EnvVars: []string{"DROVER_ADDRESS"}, Value: defaultAddress},
			&cli.StringFlag{Name: "tls-ca", Usage: "certificate of the cluster's authority", EnvVars: []string{"DROVER_TLS_CA"}},
			&cli.StringFlag{Name: "tls-cert", Usage: "your certificate", EnvVars: []string{"DROVER_TLS_CERT"}},
			&cli.StringFlag{Name: "tls-key", Usage: "your key", EnvVars: []string{"DROVER_TLS_KEY"}},
			&cli.BoolFlag{Name: "no-color", Usage: "plain text", EnvVars: []string{"NO_COLOR"}},
		},
		Commands: commands(),
		CommandNotFound: func(c *cli.Context, name string) {
			fmt.Fprintln(c.App.ErrWriter, "drover: "+unknownCommand(c, name))
		},
		OnUsageError: func(c *cli.Context, err error, sub bool) error {
			return usage("%s; `drover %s -h` lists the flags", flagHint(err, c), strings.TrimSpace(c.Command.FullName()))
		},
		ExitErrHandler: func(*cli.Context, error) {}, // main decides
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usage("%s", unknownCommand(c, c.Args().First()))
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		finish(c)
	}
	return app
}

// commands lists the tree in the order in which help shows it.
func commands() []*cli.Command {
	return []*cli.Command{
		jobCommand(),
		taskCommand(),
		nodeCommand(),
		tenantCommand(),
		schedulerCommand(),
		simCommand(),
		eventsCommand(),
		statusCommand(),
		devCommand(),
		coordinatorCommand(),
		tlsCommand(),
		doctorCommand(),
		benchCommand(),
		completionCommand(),
		versionCommand(),
	}
}

// finish gives every command the common error handling, and a group without a
// verb its help.
func finish(c *cli.Command) {
	c.OnUsageError = func(ctx *cli.Context, err error, _ bool) error {
		return usage("%s; `drover %s -h` lists the flags", flagHint(err, ctx), fullName(ctx))
	}
	for _, s := range c.Subcommands {
		finish(s)
	}
	if len(c.Subcommands) > 0 && c.Action == nil {
		c.Action = func(ctx *cli.Context) error {
			if ctx.Args().Present() {
				return usage("%s", unknownCommand(ctx, ctx.Args().First()))
			}
			return cli.ShowSubcommandHelp(ctx)
		}
	}
}

func fullName(c *cli.Context) string {
	var names []string
	for _, l := range c.Lineage() {
		if l.Command != nil && l.Command.Name != "" && l.Command.Name != "drover" && (len(names) == 0 || names[0] != l.Command.Name) {
			names = append([]string{l.Command.Name}, names...)
		}
	}
	return strings.Join(names, " ")
}

// args checks the number of arguments and refuses flags among them, which the
// parser would silently take as arguments.
func args(c *cli.Context, least, most int, what string) ([]string, error) {
	all := c.Args().Slice()
	for i, a := range all {
		if strings.HasPrefix(a, "-") && a != "-" {
			return nil, usage("flag %s stands after the argument %q: put flags first, as in `drover %s %s %s`", a, all[max(0, i-1)], fullName(c), a, what)
		}
	}
	if len(all) < least || len(all) > most {
		return nil, usage("want `drover %s [flags] %s`", fullName(c), what)
	}
	return all, nil
}

// interactive tells whether w is a terminal.
func interactive(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
