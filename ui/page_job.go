package ui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// counter is a row of a table of counters.
type counter struct {
	Name  string
	Value int64
}

func sortedCounters(m map[string]int64) (out []counter) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, counter{k, m[k]})
	}
	return out
}

// stageUse shows what a stage asked for beside what it used.
type stageUse struct {
	*droverv1.StageSummary
	CPUUsed             int64 // millicores, mean while a task ran
	CPUPart, MemoryPart float64
	Advice              string
}

// Advice is given to a stage of which enough is known.
const (
	adviceTasks = 3   // ended
	adviceRoom  = 0.5 // used at most that part of what was asked
	advised     = 1.3 // times what was used
)

func newStageUse(s *droverv1.StageSummary) stageUse {
	u := stageUse{StageSummary: s, MemoryPart: part(s.GetPeakMemory(), s.GetDemand().GetMemory())}
	if ran := s.GetMeanTaskMs() * int64(s.GetDone()); ran > 0 && s.GetDone() > 0 {
		u.CPUUsed = s.GetCpuMs() * 1000 / ran
		u.CPUPart = part(u.CPUUsed, s.GetDemand().GetCpu())
	}
	var less []string
	if s.GetDone() >= adviceTasks && s.GetPeakMemory() > 0 && u.MemoryPart <= adviceRoom {
		less = append(less, "memory "+sizeText(int64(float64(s.GetPeakMemory())*advised)))
	}
	if s.GetDone() >= adviceTasks && u.CPUUsed > 0 && u.CPUPart <= adviceRoom {
		less = append(less, "CPU "+cpuText(max(int64(float64(u.CPUUsed)*advised), 100)))
	}
	if len(less) > 0 {
		u.Advice = strings.Join(less, " and ") + " would do"
	}
	return u
}

type jobData struct {
	*droverv1.GetJobResponse
	CanStop, CanSuspend, CanResume, CanRunAgain bool
	MessageClass                                string
	Waiting                                     []*droverv1.StageSummary
	Stopping                                    map[string]*waitingRow // by stage that waits: what would have to give way
	FailedName, FailedAddress                   string                 // STAGE/INDEX.ATTEMPT, as the command line takes it
	Failures                                    []failedAttempt
	Graph                                       template.HTML
	Uses                                        []stageUse
	Counters                                    []counter
	Preempted                                   *droverv1.PreemptionTotals
	SpecText                                    string
	StageChoices, TaskChoices                   []choice
	Tasks                                       []taskRow
	TasksTotal                                  int64
	TasksAddress, WaterfallAddress              string
}

// firstTasks is how many tasks a job's page has without its script.
const firstTasks = 50

// jobPage shows one job.
func (q *query) jobPage() (*view, error) {
	res, err := q.job(q.segment(1))
	if err != nil {
		return nil, err
	}
	j := res.GetJob()
	live := j.GetEndedMs() == 0
	d := &jobData{GetJobResponse: res, CanStop: live && res.GetMayOperate(), CanRunAgain: !live && res.GetMaySubmit(), Counters: sortedCounters(res.GetCounters()), SpecText: indented(res.GetSpec())}
	d.MessageClass = map[bool]string{true: "wait", false: "calm"}[live]
	if j.GetState() == droverv1.JobState_JOB_STATE_FAILED {
		d.MessageClass = "bad"
	}
	stages := []string{"", "all"}
	for _, s := range res.GetStages() {
		stages = append(stages, s.GetName(), s.GetName())
		if s.GetWaiting() != "" && j.GetMessage() == "" {
			d.Waiting = append(d.Waiting, s)
		}
		d.CanSuspend = d.CanSuspend || live && res.GetMayOperate() && s.GetRunning() > 0
		d.CanResume = d.CanResume || live && res.GetMayOperate() && s.GetSuspended() > 0
		d.Uses = append(d.Uses, newStageUse(s))
	}
	if p := res.GetPreempted(); p.GetSuspends() > 0 || p.GetKills() > 0 {
		d.Preempted = p
	}
	if stage, index, ok := strings.Cut(res.GetFailedTask(), "/"); ok {
		index, attempt, _ := strings.Cut(index, ".")
		attempt, _, _ = strings.Cut(attempt, ".") // without the number of its run
		d.FailedName, d.FailedAddress = fmt.Sprintf("%s/%s.%s", stage, index, attempt), address("jobs", j.GetJob(), "tasks", stage, index)
	}
	if d.Failures, err = lastFailures(q, res); err != nil {
		return nil, err
	}
	d.Graph = stageGraph(res.GetStages(), stagesBefore(res.GetSpec()))
	d.StageChoices = choices(q.values.Get("stage"), stages...)
	d.TaskChoices = choices(q.values.Get("show"), taskShows...)
	if err := d.addStopping(q); err != nil {
		return nil, err
	}
	if err := d.addTasks(q); err != nil {
		return nil, err
	}
	return &view{Title: j.GetName(), Nav: "Jobs", Template: "job", Scripts: []string{"tasks.js"}, Data: d}, nil
}

// addStopping adds what would have to give way for the stages that wait.
func (d *jobData) addStopping(q *query) error {
	if len(d.Waiting) == 0 {
		return nil
	}
	plan, err := q.schedule(&droverv1.GetScheduleRequest{Job: fmt.Sprint(d.GetJob().GetJob()), Limit: 1})
	if err != nil {
		return err
	}
	x := newScheduleIndex(plan)
	d.Stopping = map[string]*waitingRow{}
	for _, w := range plan.GetWaiting() {
		if list, node := x.stopping(w); len(list) > 0 {
			d.Stopping[x.stageName(w.GetJob(), w.GetStage())] = &waitingRow{Stopping: list, StopNode: node}
		}
	}
	return nil
}

func (d *jobData) addTasks(q *query) error {
	f, err := q.taskFilter()
	if err != nil {
		return err
	}
	f.job = fmt.Sprint(d.GetJob().GetJob())
	rows, total, err := q.taskRows(f, 0, firstTasks)
	if err != nil {
		return err
	}
	d.Tasks, d.TasksTotal = rows, int64(total)
	// The digest of the job's summary stands for its tasks: one that changes
	// changes a number there.
	list := []string{"job", f.job, "stage", f.stage, "show", f.show, "total", fmt.Sprint(total)}
	d.TasksAddress = dataAddress("tasks", []any{rows, summaryNumbers(d.GetJobResponse)}, list...)
	d.WaterfallAddress = dataAddress("waterfall", []any{rows, summaryNumbers(d.GetJobResponse)}, list...)
	return nil
}

// summaryNumbers returns what changes in a job's summary when one of its tasks
// does.
func summaryNumbers(r *droverv1.GetJobResponse) (out []any) {
	for _, s := range r.GetStages() {
		out = append(out, s.GetDone(), s.GetRunning(), s.GetSuspended(), s.GetPending(), s.GetFailedAttempts(), s.GetProgress())
	}
	return out
}

// indented returns JSON with line breaks, or text that is none unchanged.
func indented(text string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(text), "", "  ") != nil {
		return text
	}
	return b.String()
}

// stagesBefore returns for each stage the indexes of the stages that it waits
// for.
func stagesBefore(spec string) [][]int {
	j, err := jobspec.DecodeStored([]byte(spec))
	if err != nil {
		return nil // the page says what it can
	}
	out := make([][]int, len(j.Stages))
	for i := range j.Stages {
		for _, k := range j.StagesBefore(i) {
			out[i] = append(out[i], int(k))
		}
	}
	return out
}

// taskFilter chooses tasks of a job.
type taskFilter struct{ job, stage, show string }

// taskRow is a row of a table of tasks. Its fields are named as the script
// reads them.
type taskRow struct {
	Stage    string  `json:"stage"`
	Index    int32   `json:"index"`
	State    string  `json:"state"`
	Node     string  `json:"node"`
	Attempts int     `json:"attempts"`
	Failed   int     `json:"failed"`
	WaitedMs int64   `json:"waited"` // -1: it has not been placed
	RanMs    int64   `json:"ran"`
	Progress float64 `json:"progress"`
	Status   string  `json:"status"`

	bars []taskBar
}

// taskBar is an attempt in the waterfall: until which times (Unix ms, 0 for
// not reached) it was starting, and running or suspended.
type taskBar struct {
	Attempt    int32  `json:"attempt"`
	Placed     int64  `json:"placed"`
	Started    int64  `json:"started"`
	End        int64  `json:"end"` // 0: it has not ended
	State      string `json:"state"`
	Paused     int64  `json:"paused"`     // ms after Placed, since earlier attempts failed
	Fetching   int64  `json:"fetching"`   // ms before Started
	Committing int64  `json:"committing"` // ms before End
	Suspended  int64  `json:"suspended"`  // ms in all
	Since      int64  `json:"since"`      // suspended since; 0: it is not
}

// taskWindow is the most tasks of one answer about them.
const taskWindow = 2000

// taskRows returns the tasks of a filter from one on, at most n of them, and
// how many there are. Without a choice only these are asked for.
func (q *query) taskRows(f taskFilter, from, n int) ([]taskRow, int, error) {
	res, err := q.job(f.job)
	if err != nil {
		return nil, 0, err
	}
	submitted := res.GetJob().GetSubmittedMs()
	from, n = max(from, 0), min(max(n, 0), taskWindow)
	if f.show == "" {
		part, err := q.tasks(&droverv1.ListTasksRequest{Job: f.job, Stage: f.stage, From: int32(from), Limit: int32(max(n, 1))})
		if err != nil {
			return nil, 0, err
		}
		return newTaskRows(part.GetTasks(), submitted), int(part.GetTotal()), nil
	}
	rows, err := q.chosenTasks(f, submitted)
	if err != nil {
		return nil, 0, err
	}
	from = min(from, len(rows))
	return rows[from:min(from+n, len(rows))], len(rows), nil
}

// chosenTasks returns all tasks of a filter that needs to see every task.
func (q *query) chosenTasks(f taskFilter, submitted int64) (out []taskRow, err error) {
	for from := int32(0); ; {
		res, err := q.tasks(&droverv1.ListTasksRequest{Job: f.job, Stage: f.stage, From: from})
		if err != nil {
			return nil, err
		}
		for _, r := range newTaskRows(res.GetTasks(), submitted) {
			if r.matches(f.show) {
				out = append(out, r)
			}
		}
		from += int32(len(res.GetTasks()))
		if len(res.GetTasks()) == 0 || from >= res.GetTotal() {
			break
		}
	}
	if f.show == "slowest" {
		slices.SortStableFunc(out, func(a, b taskRow) int { return cmp.Compare(b.RanMs, a.RanMs) })
	}
	return out, nil
}

func (r *taskRow) matches(show string) bool {
	switch show {
	case "failed":
		return r.Failed > 0
	case "waiting":
		return r.State == "pending"
	case "running":
		return r.State == show || r.State == "back-off" // it occupies its node, and is counted among the running
	case "suspended":
		return r.State == show
	default:
		return true
	}
}

func newTaskRows(tasks []*droverv1.TaskStatus, submitted int64) []taskRow {
	out := make([]taskRow, len(tasks))
	for i, t := range tasks {
		out[i] = newTaskRow(t, submitted)
	}
	return out
}

func newTaskRow(t *droverv1.TaskStatus, submitted int64) taskRow {
	r := taskRow{Stage: t.GetStage(), Index: t.GetTask(), State: t.GetState(), Attempts: len(t.GetAttempts()), WaitedMs: -1}
	for i, a := range t.GetAttempts() {
		seen := a.GetSeen()
		b := taskBar{Attempt: a.GetKey().GetAttempt(), Placed: a.GetPlacedMs(), Started: seen.GetStartedMs(), State: phaseText(seen), Paused: seen.GetStartPauseMs(), Fetching: seen.GetFetchingMs(), Committing: seen.GetCommittingMs(), Suspended: a.GetLevel().GetSuspendedMs()}
		if isOver(seen) {
			b.End = cmp.Or(seen.GetEndedMs(), seen.GetStartedMs()+seen.GetRunningMs(), a.GetPlacedMs())
		} else if b.State == "back-off" {
			r.State = b.State
		} else if l := seen.GetLevel(); l > droverv1.Level_LEVEL_RUNNING {
			r.State, b.State, b.Since = "suspended", "suspended", a.GetLevel().GetSinceMs()
		}
		if seen.GetPhase() == droverv1.Phase_PHASE_FAILED && seen.GetCause() != droverv1.Cause_CAUSE_STOPPED {
			r.Failed++
		}
		if i == 0 {
			r.WaitedMs = max(a.GetPlacedMs()-submitted, 0)
		}
		r.Node, r.RanMs, r.Progress, r.Status = a.GetNode(), seen.GetRunningMs(), seen.GetProgress(), seen.GetStatus()
		if seen.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED {
			r.Progress = 1
		}
		r.bars = append(r.bars, b)
	}
	return r
}

// isOver reports whether an attempt has ended.
func isOver(s *droverv1.SeenAttempt) bool {
	return s.GetPhase() >= droverv1.Phase_PHASE_SUCCEEDED
}

// phaseText returns the state of an attempt in one word.
func phaseText(s *droverv1.SeenAttempt) string {
	switch s.GetPhase() {
	case droverv1.Phase_PHASE_PREPARING:
		switch {
		case s.GetFetchingMs() > 0:
			return "fetching"
		case s.GetStartPauseMs() > 0 && s.GetStep() == "wait":
			return "back-off"
		}
		return "starting"
	case droverv1.Phase_PHASE_RUNNING:
		if s.GetLevel() > droverv1.Level_LEVEL_RUNNING {
			return "suspended"
		}
		if s.GetCommittingMs() > 0 {
			return "committing"
		}
		return "running"
	case droverv1.Phase_PHASE_SUCCEEDED:
		return "succeeded"
	case droverv1.Phase_PHASE_FAILED:
		if s.GetCause() == droverv1.Cause_CAUSE_STOPPED {
			return "stopped"
		}
		return "failed"
	case droverv1.Phase_PHASE_GONE:
		return "lost"
	default:
		return "placed"
	}
}

// parseIndex returns the number of a task in an address.
func parseIndex(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	return int32(n), err
}
