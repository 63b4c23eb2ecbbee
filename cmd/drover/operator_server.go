package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func serverListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the coordinators and how far each of them is",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.listServers(c.Context)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res)
			}
			var rows [][]string
			last := lastApplied(res.Servers)
			for _, s := range res.Servers {
				rows = append(rows, serverRow(s, last))
			}
			printTable(c.App.Writer, []string{"server", "address", "role", "last contact", "applied", "free disk", "certificate until", "state"}, rows)
			return nil
		},
	}
}

func (c *client) listServers(ctx context.Context) (*droverv1.ListServersResponse, error) {
	res, err := c.operator.ListServers(ctx, connect.NewRequest(&droverv1.ListServersRequest{}))
	if err != nil {
		return nil, c.classifyError(err)
	}
	return res.Msg, nil
}

// lastApplied returns how far the leader is in the log, or the server that is furthest.
func lastApplied(servers []*droverv1.Server) (last uint64) {
	for _, s := range servers {
		last = max(last, s.AppliedIndex)
	}
	return last
}

// Delays between a leader and the others that are no longer usual.
const (
	farBehind   = 1000 // entries
	longSilence = 10 * time.Second
)

// serverState says what a server lacks that others of the cluster have. A leader has applied last.
func serverState(s *droverv1.Server, last uint64) string {
	silence := time.Duration(s.LastContactMs) * time.Millisecond
	switch {
	case s.AppliedIndex == 0 && last > 0:
		return "empty: it has no log yet, and counts for no majority"
	case !s.Leader && silence < 0:
		return "has heard from no leader"
	case !s.Leader && silence > longSilence:
		return "hears from no leader"
	case last > s.AppliedIndex+farBehind:
		return fmt.Sprintf("%d entries behind", last-s.AppliedIndex)
	case s.MissingFiles > 0:
		return fmt.Sprintf("%d files to fetch", s.MissingFiles)
	default:
		return "ok"
	}
}

// serverRow is a server's line of the list.
func serverRow(s *droverv1.Server, last uint64) []string {
	role := "follower"
	switch {
	case s.Leader:
		role = "leader"
	case !s.Voter:
		role = "no voter"
	}
	if s.Error != "" {
		return []string{s.Id, s.Address, role, "-", "-", "-", "-", s.Error}
	}
	contact := (time.Duration(s.LastContactMs) * time.Millisecond).String()
	switch {
	case s.Leader:
		contact = "-"
	case s.LastContactMs < 0:
		contact = "never"
	}
	cert := "-"
	if s.CertificateUntilMs > 0 {
		cert = time.UnixMilli(s.CertificateUntilMs).Format(time.DateOnly)
	}
	return []string{s.Id, s.Address, role, contact, fmt.Sprint(s.AppliedIndex), jobspec.FormatSize(s.DiskFree), cert, serverState(s, last)}
}

func serverAddCommand() *cli.Command {
	return &cli.Command{
		Name: "add", ArgsUsage: "ID HOST:PORT",
		Usage: "add a coordinator that was started with -join, or change the peer address of one",
		Description: "A coordinator that starts with -join and an empty folder has itself added; this is for one whose certificate has\n" +
			"another name. It gets the log and the files first, and votes from then on: the command waits for that.",
		Flags: []cli.Flag{&cli.DurationFlag{Name: "timeout", Value: 2 * time.Minute, Usage: "how long to wait until it votes; 0: not at all"}},
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 2, 2, "ID HOST:PORT")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			if _, err := cl.operator.AddServer(c.Context, connect.NewRequest(&droverv1.AddServerRequest{Id: args[0], Address: args[1]})); err != nil {
				return cl.classifyError(err)
			}
			limit := c.Duration("timeout")
			if limit <= 0 {
				fmt.Fprintf(c.App.Writer, "server %s is added; it votes when it has the log and the files: `drover operator server list` shows how far it is\n", args[0])
				return nil
			}
			if err := awaitVoter(c.Context, cl, args[0], limit); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "server %s is added and votes\n", args[0])
			return nil
		},
	}
}

// voterPoll is the time between two looks at a server that catches up.
const voterPoll = 500 * time.Millisecond

// awaitVoter waits until a server that was added votes.
func awaitVoter(ctx context.Context, cl *client, id string, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		res, err := cl.listServers(ctx)
		if ctx.Err() != nil {
			return addStands(id)
		}
		if err != nil {
			return err
		}
		if slices.ContainsFunc(res.Servers, func(s *droverv1.Server) bool { return s.Id == id && s.Voter }) {
			return nil
		}
		select {
		case <-time.After(voterPoll):
		case <-ctx.Done():
			return addStands(id)
		}
	}
	return fault.New(fault.Unavailable, "server %s is added, and does not vote after %s: `drover operator server list` shows how far it is", id, limit)
}

// addStands is what Ctrl-C of a command that waits for a server to vote returns.
func addStands(id string) error {
	return exitError{exitDetached, fmt.Errorf("interrupted; server %s is added and catches up: `drover operator server list` shows how far it is", id)}
}

func serverRemoveCommand() *cli.Command {
	return &cli.Command{
		Name: "remove", ArgsUsage: "ID",
		Usage: "take a coordinator out of the cluster",
		Description: "It is refused where too few of the others answer to go on. A leader has another one lead first. The coordinator that\n" +
			"was removed stops; its data folder is of no use any more.",
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 1, 1, "ID")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			known, err := cl.listServers(c.Context)
			if err != nil && !errors.Is(err, fault.Denied) { // a caller who may not list may not remove either, and is told so below
				return err
			}
			if err == nil && !slices.ContainsFunc(known.Servers, func(s *droverv1.Server) bool { return s.Id == args[0] }) {
				return fault.New(fault.NotFound, "there is no server %q: `drover operator server list` shows them", args[0])
			}
			if _, err := cl.operator.RemoveServer(c.Context, connect.NewRequest(&droverv1.RemoveServerRequest{Id: args[0]})); err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "server %s is removed\n", args[0])
			return nil
		},
	}
}

func serverTransferCommand() *cli.Command {
	return &cli.Command{
		Name: "transfer", ArgsUsage: "[ID]",
		Usage:       "have another coordinator lead",
		Description: "Before work on the leader's machine. Without ID the one that is furthest leads.",
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 0, 1, "[ID]")
			if err != nil {
				return err
			}
			req := &droverv1.TransferLeadershipRequest{}
			if len(args) > 0 {
				req.Id = args[0]
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.operator.TransferLeadership(c.Context, connect.NewRequest(req))
			if err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "server %s leads\n", res.Msg.Leader)
			return nil
		},
	}
}
