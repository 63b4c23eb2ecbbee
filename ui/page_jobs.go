package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// jobRow is a job with what its row shows.
type jobRow struct {
	*droverv1.JobSummary
	DonePart, RunningPart float64
	Took                  string
}

func newJobRow(j *droverv1.JobSummary) jobRow {
	r := jobRow{JobSummary: j, DonePart: part(int64(j.GetTasksDone()), int64(j.GetTasks())), RunningPart: part(int64(j.GetTasksRunning()), int64(j.GetTasks())), Took: "–"}
	if j.GetStartedMs() > 0 && j.GetEndedMs() > 0 {
		r.Took = durationText(j.GetEndedMs() - j.GetStartedMs())
	}
	return r
}

// column is the head of a column that can be sorted by.
type column struct {
	Label, Address, Sorted string
	Numeric                bool
}

type jobsData struct {
	Summary, Search, Sort string
	States, Tenants       []choice
	Pasts                 []choice
	User                  string
	Days                  bool   // the time is between two days
	Since, Until          string // these, "" for none
	Mine, Filtered        bool
	Columns               []column
	Jobs                  []jobRow
	Pager                 pager
}

// jobOrders are the orders of the list; each ends with the number.
var jobOrders = map[string]func(a, b *droverv1.JobSummary) int{
	"job":       func(a, b *droverv1.JobSummary) int { return 0 },
	"name":      func(a, b *droverv1.JobSummary) int { return cmp.Compare(b.GetName(), a.GetName()) },
	"state":     func(a, b *droverv1.JobSummary) int { return cmp.Compare(b.GetState(), a.GetState()) },
	"tenant":    func(a, b *droverv1.JobSummary) int { return cmp.Compare(b.GetTenant(), a.GetTenant()) },
	"progress":  func(a, b *droverv1.JobSummary) int { return cmp.Compare(newJobRow(a).DonePart, newJobRow(b).DonePart) },
	"submitted": func(a, b *droverv1.JobSummary) int { return cmp.Compare(a.GetSubmittedMs(), b.GetSubmittedMs()) },
	"took": func(a, b *droverv1.JobSummary) int {
		return cmp.Compare(tookOrder(a), tookOrder(b))
	},
	"deadline": func(a, b *droverv1.JobSummary) int { return cmp.Compare(deadlineOrder(b), deadlineOrder(a)) },
}

// tookOrder sorts live jobs after ended ones, by their expected end.
func tookOrder(j *droverv1.JobSummary) int64 {
	if j.GetEndedMs() == 0 {
		return 1<<61 + j.GetExpectedEndMs()
	}
	return j.GetEndedMs() - j.GetStartedMs()
}

// deadlineOrder sorts jobs without a deadline last.
func deadlineOrder(j *droverv1.JobSummary) int64 {
	if j.GetDeadlineMs() == 0 {
		return 1 << 62
	}
	return j.GetDeadlineMs()
}

// jobsPage lists jobs: those that are live or ended lately, or those of the past.
func (q *query) jobsPage() (*view, error) {
	tenants, err := q.tenants()
	if err != nil {
		return nil, err
	}
	state := q.values.Get("state")
	d := &jobsData{Search: q.values.Get("q"), Sort: q.values.Get("sort"), User: q.values.Get("user"), Since: q.values.Get("since"), Until: q.values.Get("until"), Mine: q.values.Get("mine") != ""}
	d.Filtered = d.Search != "" || state != "" || q.values.Get("tenant") != "" || d.User != "" || d.Mine
	past := q.values.Get("past")
	if past == "" && d.Since+d.Until != "" {
		past = "days"
	}
	d.Days = past == "days"
	d.States = choices(state, "", "all", "live", "live", "waiting", "waiting", "running", "running", "succeeded", "succeeded", "failed", "failed", "stopped", "stopped")
	d.Tenants = tenantChoices(tenants, q.values.Get("tenant"))
	d.Pasts = choices(past, "", "live and recent", "24", "ended in the last day", "168", "in the last week", "720", "in the last 30 days", "days", "between two days", "all", "ever")
	if past != "" {
		d.Filtered = true
		err = d.addPast(q, state)
	} else {
		err = d.addPresent(q, state)
	}
	if err != nil {
		return nil, err
	}
	return &view{Title: "Jobs", Nav: "Jobs", Template: "jobs", Data: d}, nil
}

// addPast lists ended jobs from the history, the last ended first, a page of them
// at a time.
func (d *jobsData) addPast(q *query, state string) error {
	req := &droverv1.ListPastJobsRequest{Tenant: q.values.Get("tenant"), User: d.User, NamePrefix: d.Search, Limit: pageRows, Page: q.values.Get("after")}
	if h := q.number("past", 0); h > 0 && h <= 24*366 {
		req.SinceMs = (now()/60_000)*60_000 - int64(h)*3_600_000
	}
	if d.Days {
		var err error
		if req.SinceMs, err = dayStart(d.Since, 0); err != nil {
			return err
		}
		if req.UntilMs, err = dayStart(d.Until, 1); err != nil {
			return err
		}
	}
	if s, ok := droverv1.JobState_value["JOB_STATE_"+strings.ToUpper(state)]; ok && state != "" {
		req.States = []droverv1.JobState{droverv1.JobState(s)}
	}
	if d.Mine {
		status, err := q.status()
		if err != nil {
			return err
		}
		req.User = status.GetCaller()
	}
	res, err := q.pastJobs(req)
	if err != nil {
		return err
	}
	for _, j := range res.GetJobs() {
		d.Jobs = append(d.Jobs, newJobRow(j))
	}
	d.Summary = "ended ones, the last first"
	d.addColumns(q, "", false)
	if res.GetNextPage() != "" {
		d.Pager.Next = q.with("after", res.GetNextPage())
	}
	return nil
}

// dayStart returns when a day (UTC) begins, or one some days after it, in Unix ms; 0 for no day.
func dayStart(day string, after int) (int64, error) {
	if day == "" {
		return 0, nil
	}
	t, err := time.Parse(time.DateOnly, day)
	if err != nil {
		return 0, fault.New(fault.Invalid, "%q is no day: want one as 2026-01-31", day)
	}
	return t.AddDate(0, 0, after).UnixMilli(), nil
}

// addPresent lists the jobs that are live or ended lately.
func (d *jobsData) addPresent(q *query, state string) error {
	req := &droverv1.ListJobsRequest{All: true, Tenant: q.values.Get("tenant"), Mine: d.Mine, Limit: presentJobs}
	res, err := q.jobs(req)
	if err != nil {
		return err
	}
	var list []*droverv1.JobSummary
	for _, j := range res.GetJobs() {
		if matchesJob(j, strings.ToLower(d.Search), state) && (d.User == "" || strings.TrimPrefix(j.GetSubmitter(), "user/") == strings.TrimPrefix(d.User, "user/")) {
			list = append(list, j)
		}
	}
	d.sort(q, list)
	live := 0
	for _, j := range res.GetJobs() {
		if j.GetEndedMs() == 0 {
			live++
		}
	}
	d.Summary = fmt.Sprintf("%s live, %s ended lately", countText(live), countText(len(res.GetJobs())-live))
	if n := res.GetMore(); n > 0 {
		d.Summary += fmt.Sprintf("; %s more are not listed: choose a tenant, or what ended in a time", countText(n))
	}
	from, to, p := q.paginate(len(list))
	d.Pager = p
	for _, j := range list[from:to] {
		d.Jobs = append(d.Jobs, newJobRow(j))
	}
	return nil
}

func tenantChoices(tenants []*droverv1.TenantStatus, on string) []choice {
	out := []choice{{Label: "all", On: on == ""}}
	for _, t := range tenants {
		n := t.GetTenant().GetName()
		out = append(out, choice{n, n, n == on})
	}
	return out
}

func matchesJob(j *droverv1.JobSummary, search, state string) bool {
	switch {
	case state == "live" && j.GetEndedMs() > 0,
		state == "waiting" && (j.GetEndedMs() > 0 || j.GetTasksRunning() > 0),
		state != "" && state != "live" && state != "waiting" && stateText(j.GetState()) != state:
		return false
	}
	for _, s := range []string{j.GetName(), fmt.Sprint(j.GetJob()), j.GetProject(), j.GetSubmitter()} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return false
}

// sort sorts list and sets the heads of the columns. A "-" before the name of
// an order turns it around.
func (d *jobsData) sort(q *query, list []*droverv1.JobSummary) {
	name, up := strings.CutPrefix(d.Sort, "-")
	order := jobOrders[name]
	if order == nil {
		name, order = "job", jobOrders["job"]
	}
	slices.SortStableFunc(list, func(a, b *droverv1.JobSummary) int {
		c := cmp.Or(order(b, a), cmp.Compare(b.GetJob(), a.GetJob()))
		if up {
			return -c
		}
		return c
	})
	d.addColumns(q, name, up)
}

// presentJobs bounds the list of live and recent jobs; more need a tenant.
const presentJobs = 2000

// addColumns sets the heads of the columns. Without an order in force the list
// cannot be sorted.
func (d *jobsData) addColumns(q *query, name string, up bool) {
	for _, c := range []struct{ order, label string }{{"job", "Number"}, {"name", "Job"}, {"state", "State"}, {"tenant", "Tenant"}, {"progress", "Tasks done"},
		{"submitted", "Submitted"}, {"took", "Took, or expected end"}, {"deadline", "Deadline"}, {"", "Why it waits, or how it ended"}} {
		col := column{Label: c.label, Numeric: slices.Contains([]string{"job", "submitted", "took"}, c.order)}
		if c.order != "" && name != "" {
			col.Address = q.with("sort", c.order)
		}
		if c.order == name && name != "" {
			col.Sorted, col.Address = "descending", q.with("sort", "-"+name)
			if up {
				col.Sorted, col.Address = "ascending", q.with("sort", name)
			}
		}
		d.Columns = append(d.Columns, col)
	}
}

// now returns the time in Unix ms, for what the API gives no time of its own.
func now() int64 { return time.Now().UnixMilli() }
