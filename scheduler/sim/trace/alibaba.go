package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// alibabaFields is the number of columns of batch_task.csv.
const alibabaFields = 9

// errNoMachine is returned for a trace whose demands are fractions of the largest machine.
var errNoMachine = errors.New("the trace states demands as fractions of its largest machine: give the machines")

// alibabaTask is a line of batch_task.csv with its number in the job's graph.
type alibabaTask struct {
	stage  HistoryStage
	number int   // in its name, 0 if it has none
	after  []int // numbers of the tasks before it
	start  time.Duration
}

// ReadAlibaba reads batch_task.csv of Alibaba's cluster-trace-v2018: lines of task_name,
// instance_num, job_name, task_type, status, start_time, end_time, plan_cpu and plan_mem, without a
// header.
//
// A task is a stage of instance_num tasks, each as long as the whole task took. The graph of a job
// is in the names of its tasks: R4_2 comes after the task with number 2. A job is submitted when
// its first task starts, because the trace does not state submissions. plan_cpu is in hundredths of
// a core; plan_mem is in percent of the memory of largest, the largest machine. Tasks without start
// or end are skipped and counted, and nothing waits for them.
func ReadAlibaba(r io.Reader, o Options, largest scheduler.Resources) (*History, error) {
	if largest[scheduler.Memory] <= 0 {
		return nil, fmt.Errorf("%s: %w", o.Name, errNoMachine)
	}
	counter := newTaskCounter(o)
	jobs, order := map[string][]alibabaTask{}, []string{}
	count, err := scanLines(r, o, func(_ int, text []byte) error {
		f := strings.Split(string(text), ",")
		if len(f) != alibabaFields {
			return fmt.Errorf("%d fields: expected the %d of batch_task.csv", len(f), alibabaFields)
		}
		t, err := parseAlibabaTask(f, largest[scheduler.Memory], counter)
		if err != nil {
			return err
		}
		if jobs[f[2]] == nil {
			order = append(order, f[2])
		}
		jobs[f[2]] = append(jobs[f[2]], *t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	h := &History{Count: count}
	for _, name := range order {
		j, err := alibabaJob(len(h.Jobs)+1, name, jobs[name])
		if err := h.add(o, j, err); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// add adds a job that was put together from many lines. With SkipBad it counts a bad one.
func (h *History) add(o Options, j *HistoryJob, err error) error {
	if err == nil {
		h.Jobs = append(h.Jobs, *j)
		return nil
	}
	err = fmt.Errorf("%s: %w", o.Name, err)
	if !o.SkipBad {
		return err
	}
	if h.Bad++; h.FirstBad == "" {
		h.FirstBad = err.Error()
	}
	return nil
}

func parseAlibabaTask(f []string, memory int64, counter *taskCounter) (*alibabaTask, error) {
	if f[0] == "" || f[2] == "" {
		return nil, fmt.Errorf("task_name is %q and job_name is %q: expected both", truncate(f[0]), truncate(f[2]))
	}
	start, err := alibabaTime(f[5], "start_time")
	if err != nil {
		return nil, err
	}
	end, err := alibabaTime(f[6], "end_time")
	if err != nil {
		return nil, err
	}
	if start == 0 || end == 0 { // outside of the trace's days
		return nil, errNothingToSimulate
	}
	if end < start {
		return nil, fmt.Errorf("end_time %s is before start_time %s", truncate(f[6]), truncate(f[5]))
	}
	instances, err := parseNumber(f[1], "instance_num", 0, maxTasks)
	if err != nil {
		return nil, err
	}
	cpu, err := parseNumber(f[7], "plan_cpu", 0, 1e6)
	if err != nil {
		return nil, err
	}
	percent, err := parseNumber(f[8], "plan_mem", 0, 100)
	if err != nil {
		return nil, err
	}
	if instances < 1 {
		return nil, errNothingToSimulate
	}
	t := &alibabaTask{start: start, stage: HistoryStage{Name: f[0], Kind: "group", CPU: int64(math.Ceil(10 * cpu)), Memory: int64(math.Ceil(percent / 100 * float64(memory)))}}
	t.number, t.after = parseAlibabaName(f[0])
	t.stage.Tasks, err = counter.tasks(int(instances), &HistoryAttempt{State: "succeeded", PlaceMS: start.Milliseconds(), EndMS: end.Milliseconds()})
	return t, err
}

// alibabaTime parses seconds since the beginning of the trace. 0 is a time before or after it.
func alibabaTime(text, what string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	s, err := parseNumber(text, what, 0, maxSeconds)
	return secondsDuration(s), err
}

// parseAlibabaName returns the number of a task and those of the tasks before it: 5 and 3, 4 for
// J5_3_4. A name of another form, as task_Nzg3, has no number and comes after nothing.
func parseAlibabaName(name string) (number int, after []int) {
	parts := strings.Split(name, "_")
	digits := strings.TrimLeft(parts[0], "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || len(digits) == len(parts[0]) {
		return 0, nil
	}
	for _, p := range parts[1:] {
		if a, err := strconv.Atoi(p); err == nil && a > 0 && a != n {
			after = append(after, a)
		}
	}
	return n, after
}

// alibabaJob builds a job. Its stages are ordered so that each comes after its predecessors.
func alibabaJob(number int, name string, tasks []alibabaTask) (*HistoryJob, error) {
	j := &HistoryJob{Version: historyVersion, Job: uint64(number), Name: name, State: "succeeded"}
	first := tasks[0].start
	placed, stage := make([]bool, len(tasks)), make([]int32, len(tasks))
	for len(j.Stages) < len(tasks) {
		before := len(j.Stages)
		for i := range tasks {
			if placed[i] {
				continue
			}
			first = min(first, tasks[i].start)
			after, ready := alibabaBefore(tasks, i, placed, stage)
			if !ready {
				continue
			}
			placed[i], stage[i] = true, int32(len(j.Stages))
			g := tasks[i].stage
			g.After = after
			j.Stages = append(j.Stages, g)
		}
		if len(j.Stages) == before {
			return nil, fmt.Errorf("job %s: its tasks wait for each other", truncate(name))
		}
	}
	j.SubmitMS = first.Milliseconds()
	return j, j.check()
}

// alibabaBefore returns the predecessors of task i as stages, and whether all of them have been added.
func alibabaBefore(tasks []alibabaTask, i int, placed []bool, stage []int32) (after []int32, ready bool) {
	for k := range tasks {
		if tasks[k].number == 0 || !slices.Contains(tasks[i].after, tasks[k].number) {
			continue
		}
		if !placed[k] {
			return nil, false
		}
		after = append(after, stage[k])
	}
	slices.Sort(after)
	return after, true
}
