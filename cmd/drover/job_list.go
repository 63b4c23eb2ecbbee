package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/jobspec"
)

// jobStates returns the states of a job in words, in their order.
func jobStates() []string {
	var words []string
	for n := int32(1); droverv1.JobState_name[n] != ""; n++ {
		words = append(words, apitext.JobState(droverv1.JobState(n)))
	}
	return words
}

// endedStates returns those of jobStates in which a job does not change any more.
func endedStates() []string {
	return []string{apitext.JobState(droverv1.JobState_JOB_STATE_SUCCEEDED), apitext.JobState(droverv1.JobState_JOB_STATE_FAILED), apitext.JobState(droverv1.JobState_JOB_STATE_STOPPED)}
}

// parseJobState returns the state of this name, which must be one of those allowed.
func parseJobState(word string, allowed []string) (droverv1.JobState, error) {
	if slices.Contains(allowed, word) {
		return droverv1.JobState(slices.Index(jobStates(), word) + 1), nil
	}
	if near := jobspec.Suggest(word, allowed); near != "" {
		return 0, usageErrorf("-state %s: did you mean %s?", word, near)
	}
	return 0, usageErrorf("-state %s: want one of %s", word, strings.Join(allowed, ", "))
}

// messageWidth is the most letters of a message in a list: the status of the one job or task, -json
// and -csv have the whole.
const messageWidth = 80

// shortened returns a text of at most so many letters, with an ellipsis where some are left out. It
// leaves out whole words, since a part of a number would look like another one, unless a word is
// longer than a quarter of the text.
func shortened(text string, most int) string {
	letters := []rune(text)
	if len(letters) <= most {
		return text
	}
	kept := string(letters[:most-1])
	if at := strings.LastIndexByte(kept, ' '); letters[most-1] != ' ' && at >= len(kept)*3/4 {
		kept = kept[:at+1]
	}
	return kept + "…"
}

// shortenedMessage is shortened for the message of a job. Of one that failed it leaves out how many attempts did before why the
// last one did.
func shortenedMessage(text string, most int) string {
	if task, rest, ok := strings.Cut(text, ": "); ok && utf8.RuneCountInString(text) > most {
		if _, why, ok := strings.Cut(rest, "; the last: "); ok {
			text = task + ": " + why
		}
	}
	return shortened(text, most)
}

// moreText says how to see the rest of a list that its limit cut, or how flags narrow it if no
// limit is that large.
func moreText(more int, noun string, shown int, narrowing string) string {
	if shown+more > coordinator.MaxListed {
		return fmt.Sprintf("%s more; -limit 0 shows %d, the most; %s leave others out", countText(more, noun), coordinator.MaxListed, narrowing)
	}
	return fmt.Sprintf("%s more; -limit %d shows all", countText(more, noun), shown+more)
}

func jobListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "live jobs, newest first",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "include ended jobs"},
			&cli.StringFlag{Name: "tenant", Usage: "only jobs of this tenant"},
			&cli.StringSliceFlag{Name: "state", Usage: "only jobs in this state: " + strings.Join(jobStates(), ", ") + "; may be repeated"},
			&cli.BoolFlag{Name: "mine", Usage: "only jobs that you submitted"},
			&cli.StringFlag{Name: "name", Usage: "only jobs whose name begins so"},
			&cli.IntFlag{Name: "limit", Value: 50, Usage: fmt.Sprintf("maximum number of jobs, at most %d; 0: that many", coordinator.MaxListed)},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			limit, err := countFlag(c, "limit", math.MaxInt32)
			if err != nil {
				return err
			}
			req := &droverv1.ListJobsRequest{All: c.Bool("all"), Limit: limit, Tenant: c.String("tenant"), Mine: c.Bool("mine"), NamePrefix: c.String("name")}
			for _, word := range c.StringSlice("state") {
				state, err := parseJobState(word, jobStates())
				if err != nil {
					return err
				}
				req.States = append(req.States, state)
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.ListJobs(c.Context, connect.NewRequest(req))
			if err != nil {
				return cl.classifyError(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			rows := make([][]string, 0, len(res.Msg.Jobs))
			for _, j := range res.Msg.Jobs {
				rows = append(rows, []string{fmt.Sprint(j.Job), j.Name, j.Tenant, j.Submitter, apitext.JobState(j.State), j.Priority,
					fmt.Sprintf("%d/%d", j.TasksDone, j.Tasks), fmt.Sprint(j.TasksRunning), unixMSText(j.SubmittedMs), shortenedMessage(j.Message, messageWidth)})
			}
			printList(c.App.Writer, []string{"job", "name", "tenant", "submitter", "state", "priority", "done", "running", "submitted", "message"}, rows, true,
				"submitter", "priority", "running", "submitted", "tenant")
			if len(rows) == 0 && !req.All && len(req.States) == 0 {
				fmt.Fprintln(c.App.ErrWriter, "no live job; ended ones: drover job list -all, and after a while drover job history")
			}
			if len(rows) == 0 && (req.Tenant != "" || req.NamePrefix != "" || req.Mine) {
				fmt.Fprintln(c.App.ErrWriter, "-tenant, -name and -mine leave others out")
			}
			if n := int(res.Msg.More); n > 0 {
				fmt.Fprintln(c.App.ErrWriter, moreText(n, "job", len(rows), "-tenant, -state, -name and -mine"))
			}
			return nil
		},
	}
}
