package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/version"
)

// manCommand writes the manual pages; packages are built with it.
func manCommand() *cli.Command {
	return &cli.Command{
		Name:      "man",
		Usage:     "write a manual page for each command into a folder",
		ArgsUsage: "DIR",
		Hidden:    true,
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "DIR")
			if err != nil {
				return err
			}
			return writeManPages(a[0], c.App)
		},
	}
}

// writeManPages writes drover.1 and a page for each command and verb, drover-job.1
// and drover-job-run.1. The same tree gives the same bytes.
func writeManPages(dir string, app *cli.App) error {
	top := &cli.Command{Name: "drover", Usage: app.Usage, Flags: app.Flags, Subcommands: app.Commands,
		Description: "One program: the coordinator of a cluster, the daemon of its machines, and the command line."}
	return writeManPage(dir, "", top)
}

func writeManPage(dir, parent string, c *cli.Command) error {
	name := strings.TrimPrefix(parent+"-"+c.Name, "-")
	var b strings.Builder
	renderManPage(&b, name, c)
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	for _, s := range visibleCommands(c) {
		if err := writeManPage(dir, name, s); err != nil {
			return err
		}
	}
	return nil
}

func visibleCommands(c *cli.Command) []*cli.Command {
	var list []*cli.Command
	for _, s := range c.Subcommands {
		if !s.Hidden && s.Name != "help" {
			list = append(list, s)
		}
	}
	return list
}

// renderManPage writes one page in the man macros of roff (groff_man(7)).
func renderManPage(w io.Writer, name string, c *cli.Command) {
	words := strings.ReplaceAll(name, "-", " ")
	fmt.Fprintf(w, ".TH %s 1 \"\" %s \"Drover\"\n", roffWord(strings.ToUpper(name)), roffWord("drover "+version.Version))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n", roffText(name), roffText(c.Usage))
	fmt.Fprintf(w, ".B %s\n", roffText(words))
	subs := visibleCommands(c)
	if len(c.Flags) > 0 {
		fmt.Fprintln(w, "[\\fIflags\\fR]")
	}
	if len(subs) > 0 {
		fmt.Fprintln(w, "[\\fIcommand\\fR]")
	}
	if c.ArgsUsage != "" {
		fmt.Fprintln(w, roffText(c.ArgsUsage))
	}
	if c.Description != "" {
		fmt.Fprintf(w, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roffText(c.Description))
	}
	if len(c.Flags) > 0 {
		fmt.Fprintln(w, ".SH OPTIONS")
		for _, f := range c.Flags {
			renderManFlag(w, f)
		}
	}
	if len(subs) > 0 {
		fmt.Fprintln(w, ".SH COMMANDS")
		for _, s := range subs {
			fmt.Fprintf(w, ".TP\n.BR %s (1)\n%s\n", roffWord(name+"-"+s.Name), roffText(s.Usage))
		}
	}
	fmt.Fprintf(w, ".SH EXIT STATUS\n0 success; %d failed; %d wrong usage or configuration; %d refused; %d nobody answers; %d stopped; %d interrupted, and what was requested goes on.\n", exitFailed, exitUsage, exitRefused, exitUnavailable, exitStopped, exitDetached)
	if name != "drover" {
		fmt.Fprintln(w, ".SH SEE ALSO\n.BR drover (1)")
	}
}

func renderManFlag(w io.Writer, f cli.Flag) {
	d, ok := f.(cli.DocGenerationFlag)
	if v, can := f.(cli.VisibleFlag); !ok || can && !v.IsVisible() {
		return
	}
	var names []string
	for _, n := range f.Names() {
		names = append(names, "\\fB\\-"+roffText(n)+"\\fR")
	}
	head := strings.Join(names, ", ")
	if d.TakesValue() {
		head += " \\fIvalue\\fR"
	}
	fmt.Fprintf(w, ".TP\n%s\n%s", head, roffText(d.GetUsage()))
	if v := fmt.Sprint(defaultOf(f)); d.TakesValue() && v != "" && v != "0" && v != "[]" {
		fmt.Fprintf(w, " (default: %s)", roffText(v))
	}
	if env := d.GetEnvVars(); len(env) > 0 {
		fmt.Fprintf(w, " [$%s]", roffText(strings.Join(env, ", $")))
	}
	fmt.Fprintln(w)
}

// roffText escapes text so that roff shows it as it is.
func roffText(s string) string {
	lines := strings.Split(strings.NewReplacer("\\", "\\e", "-", "\\-", "`", "\\(ga", "…", "...").Replace(s), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = "\\&" + l // else it would be a macro
		}
	}
	return strings.Join(lines, "\n")
}

// roffWord is text as one argument of a macro.
func roffWord(s string) string { return "\"" + strings.ReplaceAll(roffText(s), "\"", "\\(dq") + "\"" }
