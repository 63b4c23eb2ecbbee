package main

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/plain"
)

func eventsCommand() *cli.Command {
	return &cli.Command{
		Name:  "events",
		Usage: "what happened, when, and who caused it",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Usage: "only this job"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for further events, from now on; with -limit or -since also past ones"},
			&cli.DurationFlag{Name: "since", Usage: "only the last duration, such as 10m"},
			&cli.IntFlag{Name: "limit", Value: 200, Usage: "maximum number of past events, the newest; 0: all, as with -since"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per line"},
		},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			limit, err := countFlag(c, "limit", math.MaxInt32)
			if err != nil {
				return err
			}
			if d := c.Duration("since"); d < 0 {
				return usageErrorf("-since %s: want a duration such as 10m", d)
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			req := &droverv1.EventsRequest{Job: c.String("job"), Follow: c.Bool("follow"), Limit: limit}
			switch {
			case c.IsSet("limit"):
			case c.IsSet("since"):
				req.Limit = 0
			case c.Bool("follow"):
				req.Limit = -1 // from now on
			}
			if d := c.Duration("since"); d > 0 {
				req.SinceMs = time.Now().Add(-d).UnixMilli()
			}
			ctx := c.Context
			if req.Follow {
				ctx = cl.following(ctx, sayTo(c.App.ErrWriter))
			}
			st, err := cl.Events(ctx, connect.NewRequest(req))
			if err != nil {
				if c.Bool("follow") && c.Context.Err() != nil {
					return nil // Ctrl-C before anything happened
				}
				return cl.classifyError(err)
			}
			defer st.Close()
			for st.Receive() {
				if err := printEvent(c, st.Msg()); err != nil {
					return err
				}
			}
			if c.Bool("follow") && c.Context.Err() != nil {
				return nil // Ctrl-C ends it
			}
			return cl.classifyError(st.Err())
		},
	}
}

func printEvent(c *cli.Context, e *droverv1.Event) error {
	if c.Bool("json") {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
		if err != nil {
			return err
		}
		v, err := withNumbers(b, e.ProtoReflect().Descriptor())
		if err != nil {
			return err
		}
		if b, err = json.Marshal(v); err != nil {
			return err
		}
		_, err = fmt.Fprintln(c.App.Writer, string(b))
		return err
	}
	what := e.Job
	if e.Task != "" {
		what += " " + e.Task
	}
	if e.Node != "" {
		what += " @" + e.Node
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s  %-12s %-18s %s  %s\n", eventTimeText(time.UnixMilli(e.AtMs), time.Now()), plain.Line(e.Actor), e.Kind, plain.Line(what), plain.Line(e.Text))
	return err
}

// eventTimeText formats when something happened, to the millisecond, and with the date
// unless that is today's.
func eventTimeText(at, now time.Time) string {
	if at.Format(time.DateOnly) == now.In(at.Location()).Format(time.DateOnly) {
		return at.Format("15:04:05.000")
	}
	return at.Format("2006-01-02 15:04:05.000")
}
