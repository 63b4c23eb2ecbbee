package ui

import (
	"fmt"
	"html/template"
	"maps"
	"slices"
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
	Cap string
}

type behindRow struct {
	Job, Behind                        uint64
	Name, Tenant, BehindTenant, Reason string
}

type shareSample struct {
	AtMs   int64
	Values []float64
}

type tenantsData struct {
	Rows   []tenantRow
	Series []series
	Table  []shareSample
	Behind []behindRow
}

// tableSamples is how many samples a table has beside its picture.
const tableSamples = 60

// tenantsPage shows who uses what.
func (q *query) tenantsPage() (*view, error) {
	tenants, err := q.tenants()
	if err != nil {
		return nil, err
	}
	samples, err := q.samples()
	if err != nil {
		return nil, err
	}
	plan, err := q.schedule(&droverv1.GetScheduleRequest{})
	if err != nil {
		return nil, err
	}
	d := &tenantsData{Behind: behindRows(plan)}
	for _, t := range tenants {
		d.Rows = append(d.Rows, tenantRow{t, capText(t.GetTenant())})
	}
	if len(samples.GetSamples()) > 0 {
		d.addShares(tenants, samples)
	}
	return &view{Title: "Tenants", Nav: "Tenants", Template: "tenants", Data: d}, nil
}

func (d *tenantsData) addShares(tenants []*droverv1.TenantStatus, samples *droverv1.ListSamplesResponse) {
	at := times(samples.GetSamples())
	for i, name := range samples.GetTenants() {
		v := make([]float64, len(samples.GetSamples()))
		for k, s := range samples.GetSamples() {
			if i < len(s.GetShares()) {
				v[k] = s.GetShares()[i]
			}
		}
		one := series{Name: name, Last: v[len(v)-1]}
		for _, t := range tenants {
			if t.GetTenant().GetName() == name {
				one.Fair = t.GetFairShare()
			}
		}
		one.Picture = linePicture(at, v, 1, one.Fair)
		d.Series = append(d.Series, one)
	}
	for _, s := range slices.Backward(lastSamples(samples.GetSamples(), tableSamples)) {
		row := shareSample{AtMs: s.GetAtMs(), Values: make([]float64, len(d.Series))}
		copy(row.Values, s.GetShares())
		d.Table = append(d.Table, row)
	}
}

func times(list []*droverv1.Sample) []int64 {
	out := make([]int64, len(list))
	for i, s := range list {
		out[i] = s.GetAtMs()
	}
	return out
}

func lastSamples(list []*droverv1.Sample, n int) []*droverv1.Sample {
	return list[max(0, len(list)-n):]
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
	Dropped             int64
	Pending             []pendingRow
	Params              []param
	Calibration         *droverv1.CalibrationResponse
	OpenQuotes          int64
	CalibrationPicture  template.HTML
	Series              []series
	Samples             []*droverv1.Sample
}

// schedulerPage shows how the scheduler does.
func (q *query) schedulerPage() (*view, error) {
	policy, err := q.scheduler()
	if err != nil {
		return nil, err
	}
	samples, err := q.samples()
	if err != nil {
		return nil, err
	}
	calibration, err := q.calibration()
	if err != nil {
		return nil, err
	}
	d := &schedulerData{Scheduler: policy, Calibration: calibration, OpenQuotes: int64(calibration.GetOpen()), CalibrationPicture: calibrationPicture(calibration), Rate: "–", Mean: "–", Longest: "–"}
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
	d.addSamples(samples.GetSamples())
	return &view{Title: "Scheduler", Nav: "Scheduler", Template: "scheduler", Data: d}, nil
}

func (d *schedulerData) addSamples(list []*droverv1.Sample) {
	if len(list) == 0 {
		return
	}
	longest, cycles, actions, us := int64(0), int64(0), int64(0), int64(0)
	for _, s := range list {
		longest = max(longest, s.GetMaxCycleUs())
		d.Dropped += s.GetDropped()
	}
	minute := lastSamples(list, 6)
	for _, s := range minute {
		cycles, actions, us = cycles+s.GetCycles(), actions+s.GetActions(), us+s.GetMeanCycleUs()*s.GetCycles()
	}
	d.Rate = fmt.Sprintf("%.1f", float64(actions)/(10*float64(len(minute))))
	d.Longest = microsText(longest)
	if cycles > 0 {
		d.Mean = microsText(us / cycles)
	}
	at := times(list)
	add := func(name string, of func(*droverv1.Sample) float64, text func(float64) string) {
		v, top := make([]float64, len(list)), 0.0
		for i, s := range list {
			v[i] = of(s)
			top = max(top, v[i])
		}
		d.Series = append(d.Series, series{Name: name, Now: "now " + text(v[len(v)-1]) + ", most " + text(top), Picture: linePicture(at, v, top, -1)})
	}
	whole := func(v float64) string { return countText(int64(v)) }
	add("Decisions a second", func(s *droverv1.Sample) float64 { return float64(s.GetActions()) / 10 }, func(v float64) string { return fmt.Sprintf("%.1f", v) })
	add("Mean cycle", func(s *droverv1.Sample) float64 { return float64(s.GetMeanCycleUs()) }, func(v float64) string { return microsText(int64(v)) })
	add("Tasks running", func(s *droverv1.Sample) float64 { return float64(s.GetTasksRunning()) }, whole)
	add("Tasks waiting", func(s *droverv1.Sample) float64 { return float64(s.GetTasksPending()) }, whole)
	d.Samples = slices.Clone(lastSamples(list, tableSamples))
	slices.Reverse(d.Samples)
}

type eventRow struct {
	*droverv1.Event
	Key string
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
