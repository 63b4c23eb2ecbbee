package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
)

// historyPage is how many ended jobs one call asks for.
const historyPage = 1000

var csvFlag = &cli.BoolFlag{Name: "csv", Usage: "write CSV with a line of names, times as in RFC 3339"}

// timeFlags are the flags of a span of the past.
func timeFlags(what string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "since", Usage: what + " at or after: a day (2026-01-31), a time (RFC 3339), or how long ago (36h, 7d)"},
		&cli.StringFlag{Name: "until", Usage: what + " before: a day, a time, or how long ago, as for -since"},
	}
}

// parsePast returns the time that a flag of timeFlags means, Unix ms; 0 without one.
func parsePast(name, text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return t.UnixMilli(), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UnixMilli(), nil
	}
	var days int
	if n, ok := strings.CutSuffix(text, "d"); ok {
		if _, err := fmt.Sscanf(n+"|", "%d|", &days); err == nil && days >= 0 && days < 36_500 {
			return now.AddDate(0, 0, -days).UnixMilli(), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d).UnixMilli(), nil
	}
	return 0, usageErrorf("-%s %s: want a day (2026-01-31), a time (2026-01-31T12:00:00Z), or how long ago (36h, 7d)", name, text)
}

// pastSpan returns what the flags of timeFlags mean. A day begins at midnight where
// days is.
func pastSpan(c *cli.Context, days *time.Location) (since, until int64, err error) {
	now := time.Now().In(days)
	if since, err = parsePast("since", c.String("since"), now); err != nil {
		return 0, 0, err
	}
	if until, err = parsePast("until", c.String("until"), now); err != nil {
		return 0, 0, err
	}
	if since > 0 && until > 0 && until <= since {
		return 0, 0, usageErrorf("-since %s -until %s: the first must be before the second", c.String("since"), c.String("until"))
	}
	return since, until, nil
}

// sayNothingFound says that a table of the past is empty, and which of its flags may be why.
// Programs see it themselves.
func sayNothingFound(c *cli.Context, text string) {
	if c.Bool("json") || c.Bool("csv") {
		return
	}
	var set []string
	for _, f := range []string{"tenant", "user", "state", "name", "since", "until"} {
		if c.IsSet(f) {
			set = append(set, "-"+f)
		}
	}
	switch last := len(set) - 1; last {
	case -1:
	case 0:
		text += fmt.Sprintf("; %s leaves others out", set[0])
	default:
		text += fmt.Sprintf("; %s and %s leave others out", strings.Join(set[:last], ", "), set[last])
	}
	fmt.Fprintln(c.App.ErrWriter, text)
}

func requireOneFormat(c *cli.Context) error {
	if c.Bool("json") && c.Bool("csv") {
		return usageErrorf("-json and -csv: choose one")
	}
	return nil
}

func jobHistoryCommand() *cli.Command {
	return &cli.Command{
		Name:  "history",
		Usage: "ended jobs, the last ended first",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "tenant", Usage: "only jobs of this tenant"},
			&cli.StringFlag{Name: "user", Usage: "only jobs that this user submitted"},
			&cli.StringSliceFlag{Name: "state", Usage: "only jobs that ended so: " + strings.Join(endedStates(), ", ") + "; may be repeated"},
			&cli.StringFlag{Name: "name", Usage: "only jobs whose name begins so"},
			&cli.IntFlag{Name: "limit", Value: 100, Usage: "maximum number of jobs; 0: all"},
			csvFlag, jsonFlag,
		}, timeFlags("only jobs that ended")...),
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := requireOneFormat(c); err != nil {
				return err
			}
			jobs, more, err := listHistory(c)
			if err != nil {
				return err
			}
			if err := printHistory(c, jobs); err != nil {
				return err
			}
			if len(jobs) == 0 {
				sayNothingFound(c, "no job that ended so is in the history, into which jobs come a moment after their end")
			}
			if more {
				fmt.Fprintf(c.App.ErrWriter, "there may be more; -limit 0 shows all\n")
			}
			return nil
		},
	}
}

// listHistory asks for pages until the limit, and reports whether there may be more.
func listHistory(c *cli.Context) (jobs []*droverv1.JobSummary, more bool, err error) {
	req := &droverv1.ListPastJobsRequest{Tenant: c.String("tenant"), User: c.String("user"), NamePrefix: c.String("name")}
	if req.SinceMs, req.UntilMs, err = pastSpan(c, time.Local); err != nil {
		return nil, false, err
	}
	for _, word := range c.StringSlice("state") {
		state, err := parseJobState(word, endedStates())
		if err != nil {
			return nil, false, err
		}
		req.States = append(req.States, state)
	}
	most, err := countFlag(c, "limit", math.MaxInt32)
	if err != nil {
		return nil, false, err
	}
	cl, err := dial(c)
	if err != nil {
		return nil, false, err
	}
	limit := int(most)
	for {
		req.Limit = historyPage
		if limit > 0 {
			req.Limit = int32(min(historyPage, limit-len(jobs)))
		}
		res, err := cl.history.ListPastJobs(c.Context, connect.NewRequest(req))
		if err != nil {
			return nil, false, cl.classifyError(err)
		}
		jobs = append(jobs, res.Msg.GetJobs()...)
		req.Page = res.Msg.GetNextPage()
		if req.Page == "" || limit > 0 && len(jobs) >= limit {
			return jobs, req.Page != "", nil
		}
	}
}

func printHistory(c *cli.Context, jobs []*droverv1.JobSummary) error {
	if c.Bool("json") {
		return printProto(c.App.Writer, &droverv1.ListPastJobsResponse{Jobs: jobs})
	}
	at, header := unixMSText, []string{"job", "name", "tenant", "submitter", "state", "tasks", "submitted", "started", "ended", "message"}
	if c.Bool("csv") {
		at = rfc3339
	}
	message := func(j *droverv1.JobSummary) string {
		if c.Bool("csv") {
			return j.GetMessage()
		}
		return shortenedMessage(j.GetMessage(), messageWidth)
	}
	rows := make([][]string, 0, len(jobs))
	for _, j := range jobs {
		rows = append(rows, []string{fmt.Sprint(j.GetJob()), j.GetName(), j.GetTenant(), j.GetSubmitter(), apitext.JobState(j.GetState()),
			fmt.Sprintf("%d/%d", j.GetTasksDone(), j.GetTasks()), at(j.GetSubmittedMs()), at(j.GetStartedMs()), at(j.GetEndedMs()), message(j)})
	}
	if c.Bool("csv") {
		return printCSV(c.App.Writer, header, rows)
	}
	printList(c.App.Writer, header, rows, true, "submitter", "started", "submitted", "tenant", "tasks")
	return nil
}

func rfc3339(ms int64) string {
	if ms <= 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format(time.RFC3339)
}

func printCSV(w io.Writer, header []string, rows [][]string) error {
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return err
	}
	return out.WriteAll(rows)
}
