package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/plain"
)

func monitorCommand() *cli.Command {
	return &cli.Command{
		Name:  "monitor",
		Usage: "a daemon's log, live",
		Description: "Shows the recent records of the coordinator's log, or of a node's with -node, and follows it until Ctrl-C. The level\n" +
			"may be lower than the one that the daemon writes: what is shown here changes nothing there. For operators.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node", Usage: "the daemon of this node, instead of the coordinator"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "error, warn, info or debug: new records of this level and above"},
			&cli.IntFlag{Name: "recent", Value: 20, Usage: "recent records shown first, at most 1000; those have level info and above"},
			&cli.BoolFlag{Name: "no-follow", Usage: "show the recent records and end"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per line"},
		},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := checkLogLevel(c); err != nil {
				return err
			}
			const mostRecent = 1000
			recent, err := countFlag(c, "recent", mostRecent)
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			req := &droverv1.MonitorRequest{Node: c.String("node"), Level: c.String("log-level"), Recent: recent, Follow: !c.Bool("no-follow")}
			ctx := c.Context
			if req.Follow {
				ctx = cl.following(ctx, sayTo(c.App.ErrWriter))
			}
			return monitor(ctx, cl, req, c.App.Writer, c.Bool("json"))
		},
	}
}

// monitor writes log records until the stream or ctx ends. The end of ctx is the
// usual end of a stream that follows the log, and a failure of any other.
func monitor(ctx context.Context, cl *client, req *droverv1.MonitorRequest, w io.Writer, asJSON bool) error {
	st, err := cl.debug.Monitor(ctx, connect.NewRequest(req))
	if err != nil {
		return cl.classifyError(err)
	}
	defer st.Close()
	for st.Receive() {
		if err := writeRecord(w, st.Msg(), asJSON); err != nil {
			return err
		}
	}
	if ctx.Err() != nil && req.GetFollow() {
		return nil
	}
	return cl.classifyError(st.Err())
}

func writeRecord(w io.Writer, r *droverv1.LogRecord, asJSON bool) error {
	if asJSON {
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
		if err != nil {
			return err
		}
		v, err := withNumbers(b, r.ProtoReflect().Descriptor())
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(v)
	}
	var attrs strings.Builder
	for _, a := range r.Attributes {
		fmt.Fprintf(&attrs, " %s=%q", plain.Line(a.Key), a.Value)
	}
	if r.Dropped > 0 {
		if _, err := fmt.Fprintf(w, "(%d records were dropped: this terminal is too slow)\n", r.Dropped); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s %-5s %s%s\n", eventTimeText(time.UnixMicro(r.AtUs), time.Now()), plain.Line(r.Level), plain.Line(r.Message), attrs.String())
	return err
}
