package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/jobspec"
)

// synonyms are commands by which users of other systems look for one of drover's.
var synonyms = map[string]string{
	"run": "job run", "submit": "job run", "job submit": "job run", "job start": "job run", "sbatch": "job run", "srun": "job run", "rerun": "job run", "job rerun": "job run", "job restart": "job run",
	"ps": "job list", "ls": "job list", "list": "job list", "queue": "job list", "squeue": "job list", "job ls": "job list", "job queue": "job list",
	"kill": "job stop", "cancel": "job stop", "scancel": "job stop", "stop": "job stop", "job kill": "job stop", "job cancel": "job stop", "job rm": "job stop", "job delete": "job stop", "job remove": "job stop",
	"job show": "job status", "job describe": "job status", "job info": "job status", "logs": "job logs", "job log": "job logs", "job cat": "job logs",
	"top": "node list", "nodes": "node list", "sinfo": "node list", "node ls": "node list", "node show": "node status", "node cordon": "node drain", "node uncordon": "node drain -off",
	"explain": "job why", "job explain": "job why", "quote": "job plan", "job quote": "job plan",
	"sacct": "job history", "history": "job history", "log": "monitor",
}

// unknownCommand returns a message for an unknown command, with the nearest name.
func unknownCommand(c *cli.Context, name string) string {
	known := c.App.Commands
	at := commandPath(c)
	if c.Command != nil && len(c.Command.Subcommands) > 0 {
		known = c.Command.Subcommands
	}
	names := make([]string, 0, len(known))
	for _, k := range known {
		if k.Hidden {
			continue
		}
		names = append(names, k.Name)
	}
	where := strings.TrimSpace("drover " + at)
	if s := synonyms[strings.TrimSpace(at+" "+name)]; s != "" {
		return fmt.Sprintf("%s has no command %q; that is `drover %s`", where, name, s)
	}
	if s := jobspec.Suggest(name, names); s != "" {
		return fmt.Sprintf("%s has no command %q; did you mean `%s %s`?", where, name, where, s)
	}
	return fmt.Sprintf("%s has no command %q; it has %s", where, name, strings.Join(names, ", "))
}

// flagHint replaces the parser's message about an unknown flag by one that names the nearest flag,
// and that about a value by one that says which values are valid.
func flagHint(err error, c *cli.Context) string {
	text := err.Error()
	if m := badValue.FindStringSubmatch(text); m != nil && c.Command != nil {
		return fmt.Sprintf("-%s %s: %s", m[2], m[1], wantedValue(append(slices.Clone(c.Command.Flags), c.App.Flags...), m[2], m[3]))
	}
	name, ok := strings.CutPrefix(text, "flag provided but not defined: -")
	if !ok || c.Command == nil {
		return text
	}
	if commandPath(c) == "" && slices.Contains([]string{"version", "v", "V"}, strings.TrimLeft(name, "-")) {
		return fmt.Sprintf("no flag -%s; that is `drover version`", name)
	}
	var names []string
	for _, f := range c.Command.Flags {
		names = append(names, f.Names()...)
	}
	if s := jobspec.Suggest(strings.TrimLeft(name, "-"), names); s != "" {
		return fmt.Sprintf("no flag -%s; did you mean -%s?", name, s)
	}
	for _, f := range c.App.Flags {
		if slices.Contains(f.Names(), strings.TrimLeft(name, "-")) {
			return fmt.Sprintf("-%s stands before the command: `drover -%s … %s`", name, name, commandPath(c))
		}
	}
	return fmt.Sprintf("no flag -%s", name)
}

// badValue matches the message of package flag about a value: the value in quotes, the flag, and
// the cause.
var badValue = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-(\S+): (.*)$`)

// wantedValue returns what a flag wants that does not take a value for cause: by its type where the
// cause names none.
func wantedValue(flags []cli.Flag, name, cause string) string {
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	switch {
	case cause == "value out of range":
		return "the number is too large"
	case i < 0 || cause != "parse error" && !strings.HasSuffix(cause, ": invalid syntax"):
		return cause
	}
	switch flags[i].(type) {
	case *cli.DurationFlag:
		return "want a duration such as 90s, 15m or 2h"
	case *cli.Float64Flag, *cli.Float64SliceFlag:
		return "want a number such as 0.5"
	case *cli.BoolFlag:
		return "want true or false"
	case *cli.UintFlag, *cli.Uint64Flag:
		return "want a whole number, 0 or above"
	default:
		return "want a whole number"
	}
}
