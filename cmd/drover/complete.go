package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/plain"
)

// Limits of completion. A shell waits for it, so that names of the cluster must
// come quickly or not at all.
const (
	completeTimeout = time.Second
	completeJobs    = 500
)

// completeCommand prints the candidates for the last word of a command line,
// one on each line. The completion scripts call it, so they never become outdated.
func completeCommand() *cli.Command {
	return &cli.Command{
		Name: "__complete", Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			for _, s := range completeWords(c, c.Args().Slice()) {
				fmt.Fprintln(c.App.Writer, plain.Line(s))
			}
			return nil
		},
	}
}

// completeWords returns the candidates for the last of the words, which follow
// the program's name.
func completeWords(c *cli.Context, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	current, before := words[len(words)-1], words[:len(words)-1]
	at := &cli.Command{Subcommands: c.App.Commands, Flags: c.App.Flags}
	var args []string
	for i := 0; i < len(before); i++ {
		word := before[i]
		if strings.HasPrefix(word, "-") && word != "-" {
			name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
			f := flagNamed(at, name)
			if f == nil || hasValue || isBoolFlag(f) {
				continue
			}
			if i+1 == len(before) {
				return withPrefix(flagValues(c, at, name), current)
			}
			if i++; c.App != nil && name == "address" {
				_ = c.Set("address", before[i]) // a wrong one gives no names
			}
			continue
		}
		if sub := commandNamed(at, word); sub != nil && len(args) == 0 {
			at = sub
			continue
		}
		args = append(args, word)
	}
	if strings.HasPrefix(current, "-") {
		return withPrefix(flagCandidates(at, current), current)
	}
	if len(at.Subcommands) > 0 {
		return withPrefix(commandNames(at), current)
	}
	return withPrefix(argumentNames(c, at, args), current)
}

func withPrefix(all []string, prefix string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, prefix) })
}

func commandNamed(at *cli.Command, name string) *cli.Command {
	for _, s := range at.Subcommands {
		if s.HasName(name) {
			return s
		}
	}
	return nil
}

func commandNames(at *cli.Command) []string {
	var names []string
	for _, s := range at.Subcommands {
		if !s.Hidden && s.Name != "help" {
			names = append(names, s.Name)
		}
	}
	return names
}

func flagNamed(at *cli.Command, name string) cli.Flag {
	for _, f := range at.Flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func isBoolFlag(f cli.Flag) bool {
	_, ok := f.(*cli.BoolFlag)
	return ok
}

// flagCandidates returns the flags with as many dashes as the word has.
func flagCandidates(at *cli.Command, word string) []string {
	dashes := "-"
	if strings.HasPrefix(word, "--") {
		dashes = "--"
	}
	var names []string
	for _, f := range at.Flags {
		names = append(names, dashes+f.Names()[0])
	}
	if flagNamed(at, "help") == nil {
		names = append(names, dashes+"help")
	}
	slices.Sort(names)
	return names
}

// flagValues returns the values that a flag may have, if it has a closed set.
func flagValues(c *cli.Context, at *cli.Command, flag string) []string {
	switch {
	case flag == "state" && at.Name == "list":
		return jobStates()
	case flag == "state" && at.Name == "history":
		return endedStates()
	case flag == "level":
		return []string{"frozen", "swapped", "checkpointed"}
	case flag == "job":
		return jobNames(c, true)
	case flag == "tenant":
		return tenantNames(c)
	case flag == "scheduler":
		return schedulerNames(c)
	case flag == "kind":
		return []string{string(pki.KindUser), string(pki.KindNode), string(pki.KindCoordinator)}
	default:
		return nil
	}
}

// argumentNames returns the names that fit the next argument, by the word that the
// command's usage has for it.
func argumentNames(c *cli.Context, at *cli.Command, args []string) []string {
	usage := strings.Fields(at.ArgsUsage)
	if len(args) >= len(usage) {
		return nil
	}
	switch word := strings.Trim(usage[len(args)], "[]"); {
	case strings.Contains(word, "|"):
		return strings.Split(word, "|")
	case word == "JOB":
		return jobNames(c, at.Name != "stop" && at.Name != "wait")
	case word == "NODE":
		return nodeNames(c)
	case word == "NAME" && at.Name == "set":
		return schedulerNames(c)
	default:
		return nil
	}
}

// queryNames asks the coordinator for names; without an answer in time there are
// none.
func queryNames(c *cli.Context, query func(ctx context.Context, cl *client) ([]string, error)) []string {
	cl, err := dial(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context, completeTimeout)
	defer cancel()
	names, err := query(ctx, cl)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func jobNames(c *cli.Context, ended bool) []string {
	return queryNames(c, func(ctx context.Context, cl *client) (names []string, err error) {
		res, err := cl.ListJobs(ctx, connect.NewRequest(&droverv1.ListJobsRequest{All: ended, Limit: completeJobs}))
		if err != nil {
			return nil, err
		}
		for _, j := range res.Msg.Jobs {
			names = append(names, j.Name)
		}
		return names, nil
	})
}

func nodeNames(c *cli.Context) []string {
	return queryNames(c, func(ctx context.Context, cl *client) (names []string, err error) {
		res, err := cl.ListNodes(ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
		if err != nil {
			return nil, err
		}
		for _, n := range res.Msg.Nodes {
			names = append(names, n.Info.GetName())
		}
		return names, nil
	})
}

func tenantNames(c *cli.Context) []string {
	return queryNames(c, func(ctx context.Context, cl *client) (names []string, err error) {
		res, err := cl.ListTenants(ctx, connect.NewRequest(&droverv1.ListTenantsRequest{}))
		if err != nil {
			return nil, err
		}
		for _, t := range res.Msg.Tenants {
			names = append(names, t.Tenant.GetName())
		}
		return names, nil
	})
}

func schedulerNames(c *cli.Context) []string {
	return queryNames(c, func(ctx context.Context, cl *client) ([]string, error) {
		res, err := cl.GetScheduler(ctx, connect.NewRequest(&droverv1.GetSchedulerRequest{}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Available, nil
	})
}
