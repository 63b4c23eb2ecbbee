package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-run/drover/scheduler"
)

// googleInt is a number of a table of BigQuery, which writes 64-bit integers as strings. An event's
// type may be its name.
type googleInt int64

// UnmarshalJSON parses a number, a number in quotes, or the name of an event type.
func (n *googleInt) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if text == "null" {
		return nil
	}
	if i := slices.Index(googleEvents, text); i >= 0 {
		*n = googleInt(i)
		return nil
	}
	x, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%q: expected a whole number", truncate(text))
	}
	*n = googleInt(x)
	return nil
}

// googleEvents are the types of events; an event's number is its place.
var googleEvents = []string{"SUBMIT", "QUEUE", "ENABLE", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING", "UPDATE_RUNNING"}

const (
	googleSubmit   = 0
	googleSchedule = 3
	googleEvict    = 4
	googleFinish   = 6
	googleLost     = 8
)

// googleAfter is the time of events after the end of the trace.
const googleAfter = math.MaxInt64

// googleEvent is a line of the tables instance_events and collection_events. Times are microseconds.
type googleEvent struct {
	Time       googleInt      `json:"time"`
	Type       *googleInt     `json:"type"`
	Collection googleInt      `json:"collection_id"`
	Kind       googleInt      `json:"collection_type"`
	Priority   googleInt      `json:"priority"`
	Instance   *googleInt     `json:"instance_index"`
	Request    *googleRequest `json:"resource_request"`
	User       string         `json:"user"`
	Name       string         `json:"collection_name"`
}

// googleJob is the facts from the events of a collection.
type googleJob struct {
	id         int64
	user, name string
	priority   int64
	submitted  int64 // microseconds
	tasks      map[int64]*googleTask
}

// googleTask is one instance with its events.
type googleTask struct {
	steps []googleStep
	// These follow from the steps: the attempt that finished last, or else ended last, and the last
	// request.
	ran      bool
	from, to int64
	request  googleRequest
}

// googleStep is an event of an instance.
type googleStep struct {
	time, typ int64
	request   *googleRequest // nil: not changed
}

// googleRequest is a fraction of the largest machine.
type googleRequest struct {
	CPUs   float64 `json:"cpus"`
	Memory float64 `json:"memory"`
}

// ReadGoogle reads Google's cluster-usage traces of 2019 (version 3): JSON lines of the table
// instance_events, and of collection_events, which give jobs their users. Lines may be in any
// order, as in the parts of the published files.
//
// A collection becomes a job of one stage for each resource request among its tasks. A task takes
// as long as its last attempt that finished, else its last that ended (evicted, failed, killed).
// Requests are fractions of the largest machine, here largest. The tenant is the user, else the
// tier of the priority (free, best-effort, mid, production, monitoring); production and monitoring
// have high priority. Alloc sets, and tasks that did not run within the trace, are skipped and
// counted.
func ReadGoogle(r io.Reader, o Options, largest scheduler.Resources) (*History, error) {
	if largest[scheduler.CPU] <= 0 || largest[scheduler.Memory] <= 0 {
		return nil, fmt.Errorf("%s: %w", o.Name, errNoMachine)
	}
	jobs := map[int64]*googleJob{}
	count, err := scanLines(r, o, func(_ int, text []byte) error {
		var e googleEvent
		dec := json.NewDecoder(bytes.NewReader(text))
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("expected a JSON object of one event: %w", err)
		}
		if dec.More() {
			return fmt.Errorf("expected one JSON object per line, found more")
		}
		if err := e.check(); err != nil {
			return err
		}
		id := int64(e.Collection)
		if jobs[id] == nil {
			jobs[id] = &googleJob{id: id, submitted: googleAfter, tasks: map[int64]*googleTask{}}
		}
		return jobs[id].add(&e)
	})
	if err != nil {
		return nil, err
	}
	h := &History{Count: count}
	list := make([]*googleJob, 0, len(jobs))
	for _, j := range jobs {
		list = append(list, j)
	}
	slices.SortFunc(list, func(a, b *googleJob) int {
		return cmp.Or(cmp.Compare(a.submitted, b.submitted), cmp.Compare(a.id, b.id))
	})
	for _, g := range list {
		j, skipped := g.job(len(h.Jobs)+1, largest)
		h.Skipped += skipped
		if len(j.Stages) == 0 {
			continue
		}
		if err := h.add(o, j, j.check()); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (e *googleEvent) check() error {
	switch {
	case e.Type == nil || *e.Type < 0 || int(*e.Type) >= len(googleEvents):
		return fmt.Errorf("type is absent or none of %s", strings.Join(googleEvents, ", "))
	case e.Time < 0 || (e.Time > maxSeconds*1_000_000 && e.Time != googleAfter):
		return fmt.Errorf("time is %d: expected microseconds since the beginning of the trace", e.Time)
	case e.Instance != nil && (*e.Instance < 0 || *e.Instance >= maxTasks):
		return fmt.Errorf("instance_index is %d: expected 0 to %d", *e.Instance, maxTasks-1)
	case e.Request != nil && !(e.Request.CPUs >= 0 && e.Request.CPUs <= 1 && e.Request.Memory >= 0 && e.Request.Memory <= 1):
		return fmt.Errorf("resource_request is %g cpus and %g memory: expected fractions of the largest machine, 0 to 1", e.Request.CPUs, e.Request.Memory)
	default:
		return nil
	}
}

// add takes an event of the collection or of one of its instances.
func (g *googleJob) add(e *googleEvent) error {
	if e.Kind != 0 {
		return errNothingToSimulate
	}
	g.priority = max(g.priority, int64(e.Priority))
	if *e.Type == googleSubmit {
		g.submitted = min(g.submitted, int64(e.Time))
	}
	if e.Instance == nil {
		g.user, g.name = cmp.Or(g.user, e.User), cmp.Or(g.name, e.Name)
		return nil
	}
	t := g.tasks[int64(*e.Instance)]
	if t == nil {
		t = &googleTask{}
		g.tasks[int64(*e.Instance)] = t
	}
	if typ := int64(*e.Type); e.Request != nil || (typ >= googleSchedule && typ <= googleLost) {
		t.steps = append(t.steps, googleStep{int64(e.Time), typ, e.Request})
	}
	return nil
}

// replay finds the task's attempt and request in its events, in the order of their times.
func (t *googleTask) replay() {
	slices.SortStableFunc(t.steps, func(a, b googleStep) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.typ, b.typ)) })
	started, finished := int64(-1), false
	for _, s := range t.steps {
		if s.request != nil {
			t.request = *s.request
		}
		switch {
		case s.typ == googleSchedule:
			started = s.time
		case s.typ >= googleEvict && s.typ <= googleLost && started >= 0 && s.time != googleAfter:
			if s.typ == googleFinish || !finished {
				t.from, t.to, t.ran, finished = started, s.time, true, s.typ == googleFinish
			}
			started = -1
		}
	}
}

// job returns the job with a stage for each request, and the number of tasks left out.
func (g *googleJob) job(number int, largest scheduler.Resources) (*HistoryJob, int) {
	j := &HistoryJob{Version: historyVersion, Job: uint64(number), Name: g.name, Tenant: g.user, State: "succeeded"}
	if j.Name == "" {
		j.Name = fmt.Sprint("collection-", g.id)
	}
	tier := googleTier(g.priority)
	j.Tag = tier
	if j.Tenant == "" {
		j.Tenant = tier
	}
	if tier == "production" || tier == "monitoring" {
		j.Priority = "high"
	}
	indices := make([]int64, 0, len(g.tasks))
	for i := range g.tasks {
		indices = append(indices, i)
	}
	slices.Sort(indices)
	skipped, first, stages := 0, int64(googleAfter), map[googleRequest]int{}
	for _, i := range indices {
		t := g.tasks[i]
		if t.replay(); !t.ran {
			skipped++
			continue
		}
		first = min(first, t.from)
		k, ok := stages[t.request]
		if !ok {
			k = len(j.Stages)
			stages[t.request] = k
			j.Stages = append(j.Stages, HistoryStage{Name: fmt.Sprint("request-", k+1), Kind: "group",
				CPU: int64(math.Ceil(t.request.CPUs * float64(largest[scheduler.CPU]))), Memory: int64(math.Ceil(t.request.Memory * float64(largest[scheduler.Memory])))})
		}
		j.Stages[k].Tasks = append(j.Stages[k].Tasks, HistoryTask{Attempts: []HistoryAttempt{{State: "succeeded", PlaceMS: t.from / 1000, EndMS: t.to / 1000}}})
	}
	j.SubmitMS = min(g.submitted, first) / 1000 // a submission may be missing
	return j, skipped
}

// googleTier returns the tier of a priority, as the trace's documentation divides them.
func googleTier(priority int64) string {
	switch {
	case priority <= 99:
		return "free"
	case priority <= 115:
		return "best-effort"
	case priority <= 119:
		return "mid"
	case priority <= 359:
		return "production"
	default:
		return "monitoring"
	}
}
