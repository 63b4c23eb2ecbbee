package ui

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
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
	Past                  bool // of the past the search is for how a name begins
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
	d.Days, d.Past = past == "days", past != ""
	pasts := []string{"", "live and recent", "24", "ended in the last day", "168", "in the last week", "720", "in the last 30 days", "days", "between two days", "all", "ever"}
	if _, err := strconv.Atoi(past); err != nil {
		if _, err := choose(q.values, "past", pasts...); err != nil {
			return nil, fmt.Errorf("%w, or a number of hours", err)
		}
	}
	if d.States, state, err = jobStates(q.values, d.Past); err != nil {
		return nil, err
	}
	if order := strings.TrimPrefix(d.Sort, "-"); order != "" && jobOrders[order] == nil {
		return nil, unknownChoice("sort", order, slices.Sorted(maps.Keys(jobOrders)))
	}
	d.Tenants = tenantChoices(tenants, q.values.Get("tenant"))
	d.Pasts = choices(past, pasts...)
	if d.Past {
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

// jobStates returns the choices of a job's state, and the chosen one. The past has only ended jobs:
// all of them, if jobs of another state were chosen before.
func jobStates(v url.Values, past bool) (list []choice, state string, err error) {
	live := []string{"live", "live", "waiting", "waiting", "running", "running"}
	states := []string{"", "all", "succeeded", "succeeded", "failed", "failed", "stopped", "stopped"}
	if !past {
		states = slices.Insert(states, 2, live...)
	} else if slices.Contains(live, v.Get("state")) {
		return choices("", states...), "", nil
	}
	state, err = choose(v, "state", states...)
	return choices(state, states...), state, err
}

// addPast lists ended jobs from the history, the last ended first, a page of them
// at a time.
func (d *jobsData) addPast(q *query, state string) error {
	user, some, err := d.submitter(q)
	if err != nil {
		return err
	}
	req := &droverv1.ListPastJobsRequest{Tenant: q.values.Get("tenant"), User: user, NamePrefix: d.Search, States: statesNamed(state), Limit: pageRows, Page: q.values.Get("after")}
	if h := q.number("past", 0); h > 0 && h <= 24*366 {
		req.SinceMs = (now()/60_000)*60_000 - int64(h)*3_600_000
	}
	if d.Days {
		if req.SinceMs, err = dayStart(d.Since, 0); err != nil {
			return err
		}
		if req.UntilMs, err = dayStart(d.Until, 1); err != nil {
			return err
		}
	}
	res := &droverv1.ListPastJobsResponse{}
	if some {
		if res, err = q.pastJobs(req); err != nil {
			return err
		}
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

// submitter returns whose jobs are asked for, "" for all. some reports whether there may be
// any: only one's own that are another user's are none.
func (d *jobsData) submitter(q *query) (user string, some bool, err error) {
	if !d.Mine {
		return d.User, true, nil
	}
	status, err := q.status()
	return status.GetCaller(), d.User == "" || sameUser(d.User, status.GetCaller()), err
}

func sameUser(a, b string) bool {
	return strings.TrimPrefix(a, "user/") == strings.TrimPrefix(b, "user/")
}

// liveStates are the states of jobs that have not ended.
var liveStates = []droverv1.JobState{droverv1.JobState_JOB_STATE_PENDING, droverv1.JobState_JOB_STATE_RUNNING, droverv1.JobState_JOB_STATE_COMMITTING}

// statesNamed returns the states of jobs that a choice of the page may mean, nil for all.
func statesNamed(choice string) []droverv1.JobState {
	switch choice {
	case "":
		return nil
	case "live", "waiting":
		return liveStates
	default:
		return []droverv1.JobState{droverv1.JobState(droverv1.JobState_value["JOB_STATE_"+strings.ToUpper(choice)])}
	}
}

// addPresent lists the jobs that are live or ended in the last day. What they are chosen by
// is asked of the API as far as it can: it lists so many at most, the newest.
func (d *jobsData) addPresent(q *query, state string) error {
	status, err := q.status()
	if err != nil {
		return err
	}
	user, some, err := d.submitter(q)
	if err != nil {
		return err
	}
	states, tenant := statesNamed(state), q.values.Get("tenant")
	isLive := state != "" && slices.Contains(liveStates, states[0])
	live, recent := &droverv1.ListJobsResponse{}, &droverv1.ListPastJobsResponse{}
	if some && (isLive || state == "") {
		ofLive := liveStates
		if isLive {
			ofLive = states
		}
		if live, err = q.jobs(&droverv1.ListJobsRequest{Tenant: tenant, States: ofLive, Mine: d.Mine}); err != nil {
			return err
		}
	}
	if some && !isLive {
		since := (now()/60_000)*60_000 - 24*3_600_000
		if recent, err = q.pastJobs(&droverv1.ListPastJobsRequest{Tenant: tenant, User: user, States: states, SinceMs: since, Limit: recentJobs}); err != nil {
			return err
		}
	}
	list, ended := []*droverv1.JobSummary{}, map[uint64]bool{}
	for _, j := range slices.Concat(recent.GetJobs(), live.GetJobs()) { // one may have ended between the two answers
		if !ended[j.GetJob()] && matchesJob(j, strings.ToLower(d.Search), state) && (d.User == "" || sameUser(d.User, j.GetSubmitter())) {
			list = append(list, j)
			ended[j.GetJob()] = j.GetEndedMs() > 0
		}
	}
	d.sort(q, list)
	d.Summary = fmt.Sprintf("%s live in the cluster", countText(status.GetJobsRunning()))
	if n := live.GetMore(); n > 0 {
		d.Summary += fmt.Sprintf("; %s of them are not looked at here: choose a state or a tenant", countText(n))
	}
	if recent.GetNextPage() != "" {
		d.Summary += "; of those that ended in the last day, the last " + countText(len(recent.GetJobs())) + ": choose a time for the others"
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
	if state == "waiting" && j.GetTasksRunning() > 0 {
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

// recentJobs bounds the jobs that ended in the last day among the live ones: as many as the
// history lists at once.
const recentJobs = 1000

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
