package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator"
)

type usageGroup struct {
	word  string
	group droverv1.UsageGroup
	of    func(*droverv1.UsageRow) string
}

// usageGroups are what usage can be grouped by, in the order of columns.
var usageGroups = []usageGroup{
	{"day", droverv1.UsageGroup_USAGE_GROUP_DAY, (*droverv1.UsageRow).GetDay},
	{"tenant", droverv1.UsageGroup_USAGE_GROUP_TENANT, (*droverv1.UsageRow).GetTenant},
	{"user", droverv1.UsageGroup_USAGE_GROUP_USER, (*droverv1.UsageRow).GetUser},
	{"job", droverv1.UsageGroup_USAGE_GROUP_JOB, (*droverv1.UsageRow).GetName},
}

func usageCommand() *cli.Command {
	return &cli.Command{
		Name:  "usage",
		Usage: "CPU, memory and I/O that ended attempts had and used",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "by", Value: cli.NewStringSlice("tenant"), Usage: "one sum for each: day (UTC), tenant, user, job (its name); may be repeated"},
			&cli.StringFlag{Name: "tenant", Usage: "only this tenant"},
			&cli.StringFlag{Name: "user", Usage: "only this user's jobs"},
			&cli.StringFlag{Name: "name", Usage: "only jobs of this name"},
			&cli.IntFlag{Name: "limit", Value: 1000, Usage: fmt.Sprintf("maximum number of sums, those with the most CPU hours first, at most %d; 0: that many", coordinator.MaxListed)},
			csvFlag, jsonFlag,
		}, timeFlags("only attempts that ended on days (UTC)")...),
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := requireOneFormat(c); err != nil {
				return err
			}
			req := &droverv1.UsageRequest{Tenant: c.String("tenant"), User: c.String("user"), Name: c.String("name")}
			var err error
			if req.Limit, err = countFlag(c, "limit", math.MaxInt32); err != nil {
				return err
			}
			if req.Limit == 0 { // the coordinator's default, which is less
				req.Limit = coordinator.MaxListed
			}
			if req.SinceMs, req.UntilMs, err = pastSpan(c, time.UTC); err != nil {
				return err
			}
			if req.Groups, err = parseUsageGroups(c.StringSlice("by")); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.history.Usage(c.Context, connect.NewRequest(req))
			if err != nil {
				return cl.classifyError(err)
			}
			return printUsage(c, req.Groups, res.Msg)
		},
	}
}

func parseUsageGroups(words []string) (groups []droverv1.UsageGroup, err error) {
	for _, word := range words {
		i := slices.IndexFunc(usageGroups, func(g usageGroup) bool { return g.word == word })
		if i < 0 {
			return nil, usageErrorf("-by %s: want day, tenant, user or job", word)
		}
		groups = append(groups, usageGroups[i].group)
	}
	return groups, nil
}

func printUsage(c *cli.Context, groups []droverv1.UsageGroup, res *droverv1.UsageResponse) error {
	if c.Bool("json") {
		return printProto(c.App.Writer, res)
	}
	var header []string
	for _, g := range usageGroups {
		if slices.Contains(groups, g.group) {
			header = append(header, g.word)
		}
	}
	header = append(header, "attempts", "failed", "cpu hours", "cpu hours used", "memory GiB hours", "I/O MiB/s hours", "I/O GiB")
	if c.Bool("csv") {
		for i := range header {
			header[i] = strings.NewReplacer(" ", "_", "/", "").Replace(strings.ToLower(header[i]))
		}
	}
	decimals := 2
	if c.Bool("csv") {
		decimals = 6 // programs add them up: six are 4 ms of an hour
	}
	rows := make([][]string, 0, len(res.GetRows()))
	for _, r := range res.GetRows() {
		var row []string
		for _, g := range usageGroups {
			if slices.Contains(groups, g.group) {
				row = append(row, g.of(r))
			}
		}
		number := func(v float64) string { return strconv.FormatFloat(v, 'f', decimals, 64) }
		rows = append(rows, append(row, fmt.Sprint(r.GetAttempts()), fmt.Sprint(r.GetFailed()), number(r.GetCpuHours()), number(float64(r.GetCpuMs())/3_600_000),
			number(r.GetMemoryGibHours()), number(r.GetIoMibHours()), number(r.GetIoGib())))
	}
	if !c.Bool("csv") {
		printTable(c.App.Writer, header, rows)
	} else if err := printCSV(c.App.Writer, header, rows); err != nil {
		return err
	}
	if len(rows) == 0 {
		sayNothingFound(c, "no attempt that ended so has been counted")
	}
	if n := int(res.GetMore()); n > 0 {
		fmt.Fprintln(c.App.ErrWriter, moreText(n, "sum", len(rows), "-tenant, -user, -name, -since and -until"))
	}
	return nil
}
