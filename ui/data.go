package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/drover-run/drover/internal/fault"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// dataAddress returns the address of the data of a picture. It changes with
// the data, by which the script knows that it must read them again. pairs are
// the names and values of parameters.
func dataAddress(what string, data any, pairs ...string) string {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err) // the types of this package can be encoded
	}
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	v.Set("v", digest(b)[:12])
	return "/data/" + what + "?" + v.Encode()
}

// serveData returns the data of a picture as JSON, encoded once for all readers
// who get the same.
func (s *server) serveData(w http.ResponseWriter, r *http.Request) {
	q, err := s.newQuery(r.Context(), r.URL)
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	what, who := r.PathValue("what"), q.reader
	if what == "schedule" || what == "nodes" {
		who = q.rights
	}
	v, err := s.shared.get(r.Context(), who+"\x00data\x00"+r.URL.RequestURI(), func(ctx context.Context) (any, error) {
		q.asof = q.values.Get("v")
		q.ctx, q.source.ctx = ctx, ctx // it outlives the one who asks first
		v, err := q.data(what)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		return newPacked(b), nil
	})
	if err != nil {
		http.Error(w, err.Error(), statusOf(err))
		return
	}
	writePacked(w, r, http.StatusOK, "application/json", v.(*packed))
}

func (q *query) data(what string) (any, error) {
	switch what {
	case "nodes":
		show, err := choose(q.values, "show", nodeShows...)
		if err != nil {
			return nil, err
		}
		nodes, err := q.nodes()
		if err != nil {
			return nil, err
		}
		return mapOf(filterNodes(nodes, q.values.Get("q"), show)), nil
	case "tasks":
		f, err := q.taskFilter()
		if err != nil {
			return nil, err
		}
		rows, total, err := q.taskRows(f, q.number("from", 0), q.number("n", pageRows))
		return map[string]any{"rows": rows, "total": total}, err
	case "waterfall":
		return q.waterfall()
	case "schedule":
		l, err := q.layout()
		if err != nil {
			return nil, err
		}
		if q.values.Has("part") {
			return l.bars(q.number("part", 0), newWindow(q.time("from"), q.time("to"))), nil
		}
		return l.first(), nil
	default:
		return nil, fault.New(fault.NotFound, "there are no such data")
	}
}

func (q *query) taskFilter() (taskFilter, error) {
	show, err := choose(q.values, "show", taskShows...)
	return taskFilter{job: q.values.Get("job"), stage: q.values.Get("stage"), show: show}, err
}

// fallRow is a task of the waterfall.
type fallRow struct {
	Task  string    `json:"task"`
	Ready int64     `json:"ready"` // when it began to wait for a place; 0: it waits for another stage
	Slow  bool      `json:"slow"`  // among the slowest of its stage
	Bars  []taskBar `json:"bars"`
}

// fallRows bounds the waterfall: more rows than that are no picture.
const fallRows = 1000

// waterfall returns the attempts of the chosen tasks.
func (q *query) waterfall() (any, error) {
	f, err := q.taskFilter()
	if err != nil {
		return nil, err
	}
	res, err := q.job(f.job)
	if err != nil {
		return nil, err
	}
	rows, total, err := q.taskRows(f, 0, fallRows)
	if err != nil {
		return nil, err
	}
	limit, ready := slowLimits(res.GetStages()), readyTimes(res, rows)
	out := make([]fallRow, 0, len(rows))
	for i := range rows {
		t := &rows[i]
		out = append(out, fallRow{Task: t.name(), Ready: ready[t.Stage], Slow: limit[t.Stage] > 0 && t.RanMs > limit[t.Stage], Bars: t.bars})
	}
	return map[string]any{"job": res.GetJob().GetJob(), "rows": out, "total": total, "now": now(), "ended": res.GetJob().GetEndedMs()}, nil
}

// readyTimes returns by stage when its tasks began to wait for a place, as far as
// rows tell: at the submission of the job, or at the last end in the stages that it
// waits for, but not after its own first placement. It is 0 while the stage waits
// for another.
func readyTimes(res *droverv1.GetJobResponse, rows []taskRow) map[string]int64 {
	first, last := map[string]int64{}, map[string]int64{}
	for i := range rows {
		for _, b := range rows[i].bars {
			stage := rows[i].Stage
			if at, ok := first[stage]; !ok || b.Placed < at {
				first[stage] = b.Placed
			}
			last[stage] = max(last[stage], b.End)
		}
	}
	out := map[string]int64{}
	before := stagesBefore(res.GetSpec())
	for i, s := range res.GetStages() {
		out[s.GetName()] = res.GetJob().GetSubmittedMs()
		if i >= len(before) || len(before[i]) == 0 {
			continue
		}
		ready, waits := int64(0), false
		for _, k := range before[i] {
			b := res.GetStages()[k]
			ready, waits = max(ready, last[b.GetName()]), waits || b.GetDone() < b.GetTasks()
		}
		if placed, ok := first[s.GetName()]; ok && (waits || ready == 0 || placed < ready) {
			ready = placed // a reduce may begin before the maps have ended
		} else if waits {
			ready = 0
		}
		out[s.GetName()] = ready
	}
	return out
}

// slowLimits returns the time, in milliseconds, above which a task of a stage
// counts as slow: twice the mean, and near the longest.
func slowLimits(stages []*droverv1.StageSummary) map[string]int64 {
	out := map[string]int64{}
	for _, s := range stages {
		if s.GetDone() >= adviceTasks {
			out[s.GetName()] = max(2*s.GetMeanTaskMs(), s.GetMaxTaskMs()*9/10) - 1
		}
	}
	return out
}

// scheduleRequest returns what the schedule's page and picture ask for.
func (q *query) scheduleRequest() *droverv1.GetScheduleRequest {
	r := &droverv1.GetScheduleRequest{Job: q.values.Get("job"), Tenant: q.values.Get("tenant")}
	if h := q.number("past", 1); h > 1 && h <= 24*7 {
		// To the minute, so that equal pages share an answer.
		r.FromMs = (now()/60_000)*60_000 - int64(h)*3_600_000
	}
	return r
}

// name returns STAGE/INDEX.
func (r *taskRow) name() string { return fmt.Sprintf("%s/%d", r.Stage, r.Index) }
