package main

import (
	"encoding/csv"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A day is one of this machine's zone in the list of jobs, and one of UTC in usage, which is counted so. Spans that hold nothing are refused.
func TestSpansOfThePast(t *testing.T) {
	zone := time.FixedZone("", 5*3600)
	spanIn := func(zone *time.Location, args []string) (span [2]int64, err error) {
		app := &cli.App{Flags: timeFlags("jobs"), ExitErrHandler: func(*cli.Context, error) {}, Action: func(c *cli.Context) (err error) {
			span[0], span[1], err = pastSpan(c, zone)
			return err
		}}
		err = app.Run(append([]string{"jobs"}, args...))
		return span, err
	}
	midnight := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC).UnixMilli()
	const hour = 3_600_000
	for flags, want := range map[string]struct {
		jobs, usage [2]int64
		err         string
	}{
		"":                  {},
		"-since 2026-01-31": {jobs: [2]int64{midnight - 5*hour}, usage: [2]int64{midnight}},
		"-until 2026-01-31": {jobs: [2]int64{0, midnight - 5*hour}, usage: [2]int64{0, midnight}},
		"-since 2026-01-31T02:00:00Z -until 2026-01-31T09:00:00+05:00": {
			jobs: [2]int64{midnight + 2*hour, midnight + 4*hour}, usage: [2]int64{midnight + 2*hour, midnight + 4*hour}},
		"-since 2026-01-30 -until 2026-01-31": {jobs: [2]int64{midnight - 29*hour, midnight - 5*hour}, usage: [2]int64{midnight - 24*hour, midnight}},
		"-since 2026-01-31 -until 2026-01-31": {err: "-since 2026-01-31 -until 2026-01-31: the first must be before the second"},
		"-since 1d -until 2d":                 {err: "-since 1d -until 2d: the first must be before the second"},
		"-since 1h -until 2h":                 {err: "-since 1h -until 2h: the first must be before the second"},
		"-since 2026-02-31":                   {err: "-since 2026-02-31: want a day (2026-01-31)"},
		"-until -1h":                          {err: "-until -1h: want a day"},
		"-since -5d":                          {err: "-since -5d: want a day"},
		"-since 99999d":                       {err: "-since 99999d: want a day"},
		"-since 1.5d":                         {err: "-since 1.5d: want a day"},
		"-since tomorrow":                     {err: "-since tomorrow: want a day"},
	} {
		f := &fakeCoordinator{}
		span, jobsErr := spanIn(zone, strings.Fields(flags))
		_, usageErr := f.run(t, t.Context(), append([]string{"usage"}, strings.Fields(flags)...)...)
		if want.err != "" {
			for _, err := range []error{jobsErr, usageErr} {
				if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want.err) {
					t.Errorf("%s: exit code %d, %v", flags, exitCode(err), err)
				}
			}
			continue
		}
		if jobsErr != nil || usageErr != nil {
			t.Errorf("%s: %v, %v", flags, jobsErr, usageErr)
			continue
		}
		if span != want.jobs {
			t.Errorf("job history %s asks for %v, want %v", flags, span, want.jobs)
		}
		if got := [2]int64{f.usage.SinceMs, f.usage.UntilMs}; got != want.usage {
			t.Errorf("usage %s asks for %v, want %v", flags, got, want.usage)
		}
	}
}

// pastJobs returns n jobs, numbered from first.
func pastJobs(first, n int) (jobs []*droverv1.JobSummary) {
	for i := range n {
		jobs = append(jobs, &droverv1.JobSummary{Job: uint64(first + i), Name: fmt.Sprintf("j%d", first+i), State: droverv1.JobState_JOB_STATE_SUCCEEDED, EndedMs: viewMs(0)})
	}
	return jobs
}

// Pages are asked for until the limit or the end, and whether there may be more is said.
func TestPagesOfThePast(t *testing.T) {
	page := func(first, n int, next string) *droverv1.ListPastJobsResponse {
		return &droverv1.ListPastJobsResponse{Jobs: pastJobs(first, n), NextPage: next}
	}
	for name, c := range map[string]struct {
		flags  string
		pages  []*droverv1.ListPastJobsResponse
		limits []int32 // of the requests
		rows   int
		more   bool
	}{
		"nothing":                   {"", nil, []int32{100}, 0, false},
		"all on one page":           {"", []*droverv1.ListPastJobsResponse{page(1, 3, "")}, []int32{100}, 3, false},
		"the limit is reached":      {"-limit 3", []*droverv1.ListPastJobsResponse{page(1, 3, "x")}, []int32{3}, 3, true},
		"the limit is the end":      {"-limit 3", []*droverv1.ListPastJobsResponse{page(1, 3, "")}, []int32{3}, 3, false},
		"short pages":               {"-limit 5", []*droverv1.ListPastJobsResponse{page(1, 2, "x"), page(3, 2, "y"), page(5, 1, "z")}, []int32{5, 3, 1}, 5, true},
		"an empty page in between":  {"-limit 4", []*droverv1.ListPastJobsResponse{page(1, 2, "x"), page(3, 0, "y"), page(3, 2, "")}, []int32{4, 2, 2}, 4, false},
		"no limit":                  {"-limit 0", []*droverv1.ListPastJobsResponse{page(1, 1000, "x"), page(1001, 7, "")}, []int32{1000, 1000}, 1007, false},
		"a limit of several pages":  {"-limit 1500", []*droverv1.ListPastJobsResponse{page(1, 1000, "x"), page(1001, 500, "y")}, []int32{1000, 500}, 1500, true},
		"fewer than the limit asks": {"-limit 1500", []*droverv1.ListPastJobsResponse{page(1, 1000, "x"), page(1001, 7, "")}, []int32{1000, 500}, 1007, false},
	} {
		f := &fakeCoordinator{pages: c.pages}
		out, said, err := f.runBoth(t, t.Context(), append([]string{"job", "history", "-csv"}, strings.Fields(c.flags)...)...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		if err != nil || len(rows) != c.rows+1 {
			t.Errorf("%s: %d rows, %v", name, len(rows)-1, err)
		}
		for i, row := range rows[1:] {
			if row[0] != fmt.Sprint(i+1) || row[8] != "2026-11-28T08:00:00Z" || row[7] != "" {
				t.Errorf("%s: row %d is %q", name, i, row)
			}
		}
		if more := said == "there may be more; -limit 0 shows all\n"; more != c.more || !more && said != "" {
			t.Errorf("%s: %q", name, said)
		}
		for i, r := range f.past {
			next := ""
			if i > 0 {
				next = c.pages[i-1].NextPage
			}
			if i >= len(c.limits) || r.Limit != c.limits[i] || r.Page != next {
				t.Errorf("%s: request %d for %d jobs of page %q", name, i, r.Limit, r.Page)
			}
		}
		if len(f.past) != len(c.limits) {
			t.Errorf("%s: %d requests", name, len(f.past))
		}
	}
}

// Words of states and forms are checked before anything is asked.
func TestHistoryFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"-state failed -state stopped": "",
		"-state running":               "-state running: want one of succeeded, failed, stopped",
		"-state succeded":              "-state succeded: did you mean succeeded?",
		"-json -csv":                   "-json and -csv: choose one",
		"-limit -1":                    "-limit -1: want a number from 0 to 2147483647",
	} {
		f := &fakeCoordinator{}
		_, err := f.run(t, t.Context(), append([]string{"job", "history"}, strings.Fields(flags)...)...)
		switch {
		case want != "":
			if exitCode(err) != exitUsage || err.Error() != want || len(f.past) > 0 {
				t.Errorf("%s: exit code %d, %v, %d requests", flags, exitCode(err), err, len(f.past))
			}
		case err != nil || fmt.Sprint(f.past[0].States) != "[JOB_STATE_FAILED JOB_STATE_STOPPED]":
			t.Errorf("%s: %v, %v", flags, f.past, err)
		}
	}
}

// The list of live jobs says where the others are, and how to see what it leaves out.
func TestWhatTheListOfJobsLeavesOut(t *testing.T) {
	for name, c := range map[string]struct {
		flags string
		list  *droverv1.ListJobsResponse
		want  string
	}{
		"none":            {"", &droverv1.ListJobsResponse{}, "no live job; ended ones: drover job list -all, and after a while drover job history\n"},
		"none at all":     {"-all", &droverv1.ListJobsResponse{}, ""},
		"none of a state": {"-state failed", &droverv1.ListJobsResponse{}, ""},
		"all":             {"", &droverv1.ListJobsResponse{Jobs: pastJobs(1, 2)}, ""},
		"one is left out": {"-limit 2", &droverv1.ListJobsResponse{Jobs: pastJobs(1, 2), More: 1}, "1 job more; -limit 3 shows all\n"},
		"many are":        {"-limit 2", &droverv1.ListJobsResponse{Jobs: pastJobs(1, 2), More: 40}, "40 jobs more; -limit 42 shows all\n"},
		"more than a list has": {"-limit 2", &droverv1.ListJobsResponse{Jobs: pastJobs(1, 2), More: 9_999},
			"9999 jobs more; -limit 0 shows 10000, the most; -tenant, -state, -name and -mine leave others out\n"},
		"as many as a list has": {"-limit 2", &droverv1.ListJobsResponse{Jobs: pastJobs(1, 2), More: 9_998}, "9998 jobs more; -limit 10000 shows all\n"},
		"as JSON, nothing":      {"-json", &droverv1.ListJobsResponse{More: 3}, ""},
	} {
		f := &fakeCoordinator{list: c.list}
		_, said, err := f.runBoth(t, t.Context(), append([]string{"job", "list"}, strings.Fields(c.flags)...)...)
		if err != nil || said != c.want {
			t.Errorf("%s: %q, %v", name, said, err)
		}
	}
}

// Lists of jobs and tasks show the beginning of a long message; forms for programs have the whole.
func TestLongMessagesInLists(t *testing.T) {
	long := strings.Repeat("x", 200)
	jobs := pastJobs(1, 1)
	jobs[0].Message = long
	f := &fakeCoordinator{list: &droverv1.ListJobsResponse{Jobs: jobs},
		attempts: []*droverv1.TaskAttempt{{Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, Message: long}}}}
	for line, most := range map[string]int{
		"job list": messageWidth, "job history": messageWidth, "task status j": messageWidth,
		"job list -json": 200, "job history -json": 200, "job history -csv": 200, "task status -json j": 200, "task status j s/0": 200,
	} {
		f.past, f.pages = nil, []*droverv1.ListPastJobsResponse{{Jobs: jobs}}
		out, err := f.run(t, t.Context(), strings.Fields(line)...)
		want := long
		if most < len(long) {
			want = " " + long[:most-1] + "…"
		}
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

// -limit 0 asks for the most sums that there are, not for the coordinator's default.
func TestUsageLimit(t *testing.T) {
	for flags, want := range map[string]int32{"": 1000, "-limit 5": 5, "-limit 0": 10_000} {
		f := &fakeCoordinator{}
		if _, err := f.run(t, t.Context(), append([]string{"usage"}, strings.Fields(flags)...)...); err != nil || f.usage.Limit != want {
			t.Errorf("usage %s: %v, %v; want %d", flags, err, f.usage, want)
		}
	}
}

// TestWhatUsageLeavesOut: a list of sums that its limit cut says so, also to who adds them up.
func TestWhatUsageLeavesOut(t *testing.T) {
	for flags, more := range map[string]bool{"": true, "-csv": true, "-json": false} { // which has the number in it
		f := &fakeCoordinator{usageSums: &droverv1.UsageResponse{Rows: []*droverv1.UsageRow{{Tenant: "a"}}, More: 3}}
		_, said, err := f.runBoth(t, t.Context(), append([]string{"usage"}, strings.Fields(flags)...)...)
		if want := "3 sums more; -limit 4 shows all\n"; err != nil || (said == want) != more || !more && said != "" {
			t.Errorf("usage %s: %q, %v", flags, said, err)
		}
	}
}
