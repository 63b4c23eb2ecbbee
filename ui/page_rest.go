package ui

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// series is a small picture of one number over time.
type series struct {
	Name, Now  string
	Last, Fair float64
	Picture    template.HTML
}

type tenantRow struct {
	*droverv1.TenantStatus
	Cap      string
	CPUHours string // in the time shown
}

type behindRow struct {
	Job, Behind                        uint64
	Name, Tenant, BehindTenant, Reason string
}

// shareSample is a row of the table beside the pictures of shares.
type shareSample struct {
	AtMs   int64
	Values []string
}

type tenantsData struct {
	Rows       []tenantRow
	Pasts      []choice
	Time       string // that the pictures cover
	Series     []series
	MoreSeries int64
	Table      []shareSample
	Behind     []behindRow
}

// Limits of pictures over time.
const (
	maxPoints    = 300 // of a line
	tableSamples = 60  // rows of the table beside a picture
	maxSeries    = 24  // tenants with a picture
)

// tenantsPage shows who uses what.
func (q *query) tenantsPage() (*view, error) {
	tenants, err := q.tenants()
	if err != nil {
		return nil, err
	}
	plan, err := q.schedule(&droverv1.GetScheduleRequest{})
	if err != nil {
		return nil, err
	}
	since, pasts, name := q.pastTimes()
	usage, err := q.usage(&droverv1.UsageRequest{SinceMs: since, Groups: []droverv1.UsageGroup{droverv1.UsageGroup_USAGE_GROUP_TENANT}})
	if err != nil {
		return nil, err
	}
	hours := map[string]float64{}
	for _, u := range usage.GetRows() {
		hours[u.GetTenant()] = u.GetCpuHours()
	}
	d := &tenantsData{Behind: behindRows(plan), Pasts: pasts, Time: name}
	for _, t := range tenants {
		d.Rows = append(d.Rows, tenantRow{t, capText(t.GetTenant()), strconv.FormatFloat(hours[t.GetTenant().GetName()], 'f', 1, 64)})
	}
	if err := d.addShares(q, tenants, since); err != nil {
		return nil, err
	}
	return &view{Title: "Tenants", Nav: "Tenants", Template: "tenants", Data: d}, nil
}

// pastTimes returns since when pictures over time show what was, in Unix ms, the
// choices of it, and its name. To the minute, so that equal pages share an answer.
func (q *query) pastTimes() (since int64, list []choice, name string) {
	h := q.number("past", 1)
	list = choices(q.values.Get("past"), "", "the last hour", "24", "the last day", "168", "the last week", "720", "the last 30 days", "4320", "the last 180 days")
	name = list[0].Label
	for _, c := range list {
		if c.On {
			name = c.Label
		}
	}
	if h < 1 || h > 24*366 {
		h = 1
	}
	return (now()/60_000)*60_000 - int64(h)*3_600_000, list, name
}

// addShares draws the shares of the tenants that use or want most.
func (d *tenantsData) addShares(q *query, tenants []*droverv1.TenantStatus, since int64) error {
	list := slices.Clone(tenants)
	slices.SortStableFunc(list, func(a, b *droverv1.TenantStatus) int {
		return cmp.Or(cmp.Compare(b.GetDominantShare(), a.GetDominantShare()), cmp.Compare(b.GetJobs(), a.GetJobs()), cmp.Compare(a.GetTenant().GetName(), b.GetTenant().GetName()))
	})
	if n := len(list) - maxSeries; n > 0 {
		list, d.MoreSeries = list[:maxSeries], int64(n)
	}
	rows := map[int64]*shareSample{}
	for _, t := range list {
		samples, err := q.samples(t.GetTenant().GetName(), since)
		if err != nil {
			return err
		}
		if len(samples) == 0 {
			continue
		}
		at := times(samples)
		v, fair := valuesOf(samples, (*droverv1.PastSample).GetShare), valuesOf(samples, (*droverv1.PastSample).GetFairShare)
		for i, s := range lastSamples(samples) {
			k := len(samples) - len(lastSamples(samples)) + i
			if rows[s.GetAtMs()] == nil {
				rows[s.GetAtMs()] = &shareSample{AtMs: s.GetAtMs(), Values: make([]string, len(list))}
			}
			rows[s.GetAtMs()].Values[len(d.Series)] = percentText(v[k]) + " of " + percentText(fair[k])
		}
		d.Series = append(d.Series, series{Name: t.GetTenant().GetName(), Last: v[len(v)-1], Fair: fair[len(fair)-1], Picture: linePicture(at, v, 1, fair)})
	}
	for _, ms := range slices.Backward(slices.Sorted(maps.Keys(rows))) {
		if len(d.Table) == tableSamples {
			break
		}
		rows[ms].Values = rows[ms].Values[:len(d.Series)]
		d.Table = append(d.Table, *rows[ms])
	}
	return nil
}

func times(list []*droverv1.PastSample) []int64 {
	out := make([]int64, len(list))
	for i, s := range list {
		out[i] = s.GetAtMs()
	}
	return out
}

func valuesOf(list []*droverv1.PastSample, of func(*droverv1.PastSample) float64) []float64 {
	out := make([]float64, len(list))
	for i, s := range list {
		out[i] = of(s)
	}
	return out
}

func lastSamples(list []*droverv1.PastSample) []*droverv1.PastSample {
	return list[max(0, len(list)-tableSamples):]
}

// capText returns a tenant's caps in words.
func capText(t *droverv1.Tenant) string {
	one := func(r *droverv1.Resources) string {
		var out []string
		if r.GetCpu() > 0 {
			out = append(out, cpuText(r.GetCpu()))
		}
		if r.GetMemory() > 0 {
			out = append(out, sizeText(r.GetMemory()))
		}
		if r.GetIo() > 0 {
			out = append(out, sizeText(r.GetIo())+"/s")
		}
		return strings.Join(out, ", ")
	}
	all, task := one(t.GetCap()), one(t.GetTaskCap())
	if task != "" {
		task = "one task " + task
	}
	if all != "" && task != "" {
		all += "; "
	}
	if all+task == "" {
		return "–"
	}
	return all + task
}

// behindRows returns the jobs that wait behind another, once each.
func behindRows(p *droverv1.GetScheduleResponse) (out []behindRow) {
	x := newScheduleIndex(p)
	seen := map[[2]uint64]bool{}
	for _, w := range p.GetWaiting() {
		k := [2]uint64{w.GetJob(), w.GetBehindJob()}
		if w.GetBehindJob() == 0 || seen[k] || len(out) == pageRows {
			continue
		}
		seen[k] = true
		r := behindRow{Job: w.GetJob(), Behind: w.GetBehindJob(), Name: x.jobName(w.GetJob()), Reason: w.GetReason()}
		if i := x.position(w.GetJob()); i >= 0 {
			r.Tenant = p.GetJobs()[i].GetTenant()
		}
		if i := x.position(w.GetBehindJob()); i >= 0 {
			r.BehindTenant = p.GetJobs()[i].GetTenant()
		}
		out = append(out, r)
	}
	return out
}

type param struct{ Name, Value string }

type pendingRow struct {
	*droverv1.PendingSum
	Part float64
}

type schedulerData struct {
	Scheduler           *droverv1.GetSchedulerResponse
	Rate, Mean, Longest string
	Dropped             string
	Time                string // that the pictures cover
	Pasts               []choice
	Pending             []pendingRow
	Params              []param
	Calibration         *droverv1.CalibrationResponse
	OpenQuotes          int64
	CalibrationPicture  template.HTML
	Series              []series
	Samples             []*droverv1.PastSample
}

// schedulerPage shows how the scheduler does.
func (q *query) schedulerPage() (*view, error) {
	policy, err := q.scheduler()
	if err != nil {
		return nil, err
	}
	since, pasts, name := q.pastTimes()
	samples, err := q.samples("", since)
	if err != nil {
		return nil, err
	}
	calibration, err := q.calibration()
	if err != nil {
		return nil, err
	}
	d := &schedulerData{Scheduler: policy, Calibration: calibration, OpenQuotes: int64(calibration.GetOpen()), CalibrationPicture: calibrationPicture(calibration), Rate: "–", Mean: "–", Longest: "–", Dropped: "–",
		Time: name, Pasts: pasts}
	total := int64(0)
	for _, p := range policy.GetPending() {
		total += p.GetTasks()
	}
	for _, p := range policy.GetPending() {
		d.Pending = append(d.Pending, pendingRow{p, part(p.GetTasks(), total)})
	}
	for _, k := range slices.Sorted(maps.Keys(policy.GetParams())) {
		d.Params = append(d.Params, param{k, policy.GetParams()[k]})
	}
	last, err := newestSample(q, samples)
	if err != nil {
		return nil, err
	}
	d.addSamples(samples, last)
	return &view{Title: "Scheduler", Nav: "Scheduler", Template: "scheduler", Data: d}, nil
}

// addSamples draws what the scheduler did over time; last is the newest sample.
func (d *schedulerData) addSamples(list []*droverv1.PastSample, last *droverv1.PastSample) {
	if len(list) == 0 {
		return
	}
	longest, dropped := 0.0, 0.0
	for _, s := range list {
		longest = max(longest, s.GetLongestCycleMs())
		dropped += s.GetDroppedPerSecond() * float64(s.GetPeriodMs()) / 1000
	}
	ms := func(v float64) string { return microsText(int64(v * 1000)) }
	rate := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	whole := func(v float64) string { return countText(int64(math.Round(v))) }
	d.Rate, d.Mean, d.Longest, d.Dropped = rate(last.GetDecisionsPerSecond()), ms(last.GetCycleMs()), ms(longest), whole(dropped)
	d.Series = newSeries(list, last, []overTime{
		{"Decisions a second", (*droverv1.PastSample).GetDecisionsPerSecond, rate},
		{"Mean cycle", (*droverv1.PastSample).GetCycleMs, ms},
		{"Tasks running", (*droverv1.PastSample).GetTasksRunning, whole},
		{"Tasks waiting", (*droverv1.PastSample).GetTasksWaiting, whole},
	})
	d.Samples = newestFirst(list)
}

// overTime is a number that is drawn over time.
type overTime struct {
	name string
	of   func(*droverv1.PastSample) float64
	text func(float64) string
}

// newestSample returns the last sample of the cluster, nil for none. Of a long time list has
// means in place of samples: then it is asked for by itself.
func newestSample(q *query, list []*droverv1.PastSample) (*droverv1.PastSample, error) {
	if len(list) == 0 {
		return nil, nil
	}
	last := list[len(list)-1]
	lately, err := q.samples("", (now()/60_000)*60_000-5*60_000)
	if n := len(lately); n > 0 {
		last = lately[n-1]
	}
	return last, err
}

// newSeries draws numbers over time; last is the newest sample.
func newSeries(list []*droverv1.PastSample, last *droverv1.PastSample, what []overTime) (out []series) {
	if len(list) == 0 {
		return nil
	}
	at := times(list)
	for _, w := range what {
		v := valuesOf(list, w.of)
		top := slices.Max(v)
		out = append(out, series{Name: w.name, Now: "now " + w.text(w.of(last)) + ", most " + w.text(top), Picture: linePicture(at, v, top, nil)})
	}
	return out
}

// newestFirst returns the last samples for a table.
func newestFirst(list []*droverv1.PastSample) []*droverv1.PastSample {
	out := slices.Clone(lastSamples(list))
	slices.Reverse(out)
	return out
}

type eventRow struct {
	*droverv1.Event
	Key string
}

// What returns what happened in words.
func (e eventRow) What() string {
	if e.GetKind() != "task.placed" {
		return e.GetText()
	}
	switch e.GetText() {
	case "none":
		return "it has no input"
	case "node":
		return "its input is on the node"
	case "rack":
		return "its input is in the rack"
	case "remote":
		return "its input is elsewhere"
	default:
		return e.GetText()
	}
}

type eventsData struct {
	Search, Job, Kind string
	Filtered          bool
	Kinds             []string
	Sinces            []choice
	Events            []eventRow
	Pager             pager
}

// askedEvents is how many events a page asks for.
const askedEvents = 10_000

// eventsPage lists what happened, the newest first.
func (q *query) eventsPage() (*view, error) {
	d := &eventsData{Search: q.values.Get("q"), Job: q.values.Get("job"), Kind: q.values.Get("kind")}
	d.Sinces = choices(q.values.Get("since"), "", "all that is kept", "1", "an hour ago", "24", "a day ago")
	d.Filtered = d.Search != "" || d.Job != "" || d.Kind != "" || q.values.Get("since") != ""
	req := &droverv1.EventsRequest{Job: d.Job, Limit: askedEvents}
	if h := q.number("since", 0); h > 0 {
		req.SinceMs = (now()/60_000)*60_000 - int64(h)*3_600_000
	}
	list, err := q.events(req)
	if err != nil {
		return nil, err
	}
	kinds := map[string]bool{}
	var rows []eventRow
	for i, e := range slices.Backward(list) {
		kinds[e.GetKind()] = true
		if matchesEvent(e, strings.ToLower(d.Search), d.Kind) {
			rows = append(rows, eventRow{e, fmt.Sprintf("%d.%d", e.GetIndex(), placeInEntry(list, i))})
		}
	}
	d.Kinds = slices.Sorted(maps.Keys(kinds))
	from, to, p := q.paginate(len(rows))
	d.Pager, d.Events = p, rows[from:to]
	return &view{Title: "Events", Nav: "Events", Template: "events", Data: d}, nil
}

// placeInEntry returns how many events before the i-th are of the same entry.
func placeInEntry(list []*droverv1.Event, i int) (n int) {
	for k := i - 1; k >= 0 && list[k].GetIndex() == list[i].GetIndex() && n < pageRows; k-- {
		n++
	}
	return n
}

func matchesEvent(e *droverv1.Event, search, kind string) bool {
	if !strings.HasPrefix(e.GetKind(), kind) {
		return false
	}
	for _, s := range []string{e.GetActor(), e.GetKind(), e.GetJob(), e.GetTask(), e.GetNode(), e.GetText()} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return false
}
