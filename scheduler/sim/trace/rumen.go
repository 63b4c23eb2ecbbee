package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
)

// rumenJob is a job of a Rumen trace with the fields that the import uses. Times are Unix
// milliseconds; -1 is unknown.
type rumenJob struct {
	JobID      string      `json:"jobID"`
	JobName    string      `json:"jobName"`
	User       string      `json:"user"`
	Queue      string      `json:"queue"`
	Priority   string      `json:"priority"`
	SubmitTime int64       `json:"submitTime"`
	LaunchTime int64       `json:"launchTime"`
	FinishTime int64       `json:"finishTime"`
	MapMB      int64       `json:"jobMapMB"`
	ReduceMB   int64       `json:"jobReduceMB"`
	Maps       []rumenTask `json:"mapTasks"`
	Reduces    []rumenTask `json:"reduceTasks"`
}

type rumenTask struct {
	TaskID     string          `json:"taskID"`
	InputBytes int64           `json:"inputBytes"`
	StartTime  int64           `json:"startTime"`
	FinishTime int64           `json:"finishTime"`
	Locations  []rumenLocation `json:"preferredLocations"`
	Attempts   []struct {
		Result     string         `json:"result"`
		StartTime  int64          `json:"startTime"`
		FinishTime int64          `json:"finishTime"`
		HostName   string         `json:"hostName"`
		Location   *rumenLocation `json:"location"`
	} `json:"attempts"`
}

// rumenLocation is a path in the topology; the last layer is the host.
type rumenLocation struct {
	Layers []string `json:"layers"`
}

func (l *rumenLocation) host() string {
	if l == nil || len(l.Layers) == 0 {
		return ""
	}
	return l.Layers[len(l.Layers)-1]
}

// rumenMemoryMB is the memory of a task whose job does not state it: YARN's smallest container.
const rumenMemoryMB = 1024

// ReadRumen reads a job trace of Hadoop's Rumen, which its TraceBuilder makes from the job history
// of YARN and MapReduce: a sequence of JSON objects, one per job. The queue is the tenant; a map or
// reduce takes one core, the memory of its job's containers, and as long as its successful attempt.
// A job without a time for a task is bad.
func ReadRumen(r io.Reader, o Options) (*History, error) {
	h := &History{}
	dec := json.NewDecoder(r)
	for {
		var in rumenJob
		err := dec.Decode(&in)
		if errors.Is(err, io.EOF) {
			return h, nil
		}
		h.Lines++
		if h.Lines > maxLines {
			return nil, fmt.Errorf("%s: more than %d jobs", o.Name, maxLines)
		}
		if err != nil { // after broken JSON the rest cannot be parsed
			return nil, fmt.Errorf("%s: object %d, byte %d: expected a JSON object of one job: %w", o.Name, h.Lines, dec.InputOffset(), err)
		}
		j, err := in.job(h.Lines)
		switch {
		case errors.Is(err, errNothingToSimulate):
			h.Skipped++
		case err == nil:
			h.Jobs = append(h.Jobs, *j)
		case !o.SkipBad:
			return nil, fmt.Errorf("%s: object %d (%s): %w", o.Name, h.Lines, truncate(in.JobID), err)
		default:
			if h.Bad++; h.Bad == 1 {
				h.FirstBad = fmt.Sprintf("%s: object %d (%s): %v", o.Name, h.Lines, truncate(in.JobID), err)
			}
		}
	}
}

func (in *rumenJob) job(number int) (*HistoryJob, error) {
	if in.SubmitTime <= 0 {
		return nil, fmt.Errorf("submitTime is %d: expected Unix milliseconds", in.SubmitTime)
	}
	if len(in.Maps)+len(in.Reduces) == 0 {
		return nil, errNothingToSimulate
	}
	j := &HistoryJob{Version: historyVersion, Job: uint64(number), Name: in.JobName, Tenant: in.Queue, State: "succeeded", SubmitMS: in.SubmitTime,
		StartMS: max(0, in.LaunchTime), FinishMS: max(0, in.FinishTime)}
	if j.Tenant == "" {
		j.Tenant = in.User
	}
	if j.Name == "" {
		j.Name = in.JobID
	}
	if in.Priority == "HIGH" || in.Priority == "VERY_HIGH" {
		j.Priority = "high"
	}
	for _, s := range []struct {
		kind  string
		mb    int64
		tasks []rumenTask
	}{{"map", in.MapMB, in.Maps}, {"reduce", in.ReduceMB, in.Reduces}} {
		if len(s.tasks) == 0 {
			continue
		}
		if s.mb <= 0 {
			s.mb = rumenMemoryMB
		}
		g := HistoryStage{Name: s.kind, Kind: s.kind, CPU: 1000, Memory: s.mb << 20}
		if len(j.Stages) > 0 {
			g.After = []int32{0}
		}
		for i := range s.tasks {
			t, err := s.tasks[i].task()
			if err != nil {
				return nil, err
			}
			g.Tasks = append(g.Tasks, *t)
		}
		j.Stages = append(j.Stages, g)
	}
	return j, j.check()
}

func (in *rumenTask) task() (*HistoryTask, error) {
	t := &HistoryTask{InputBytes: max(0, in.InputBytes)}
	for i := range in.Locations {
		if host := in.Locations[i].host(); host != "" {
			t.Hosts = append(t.Hosts, host)
		}
	}
	for i := range in.Attempts {
		a := &in.Attempts[i]
		if a.StartTime <= 0 || a.FinishTime < a.StartTime {
			continue
		}
		host, state := a.Location.host(), "failed"
		if host == "" {
			host = path.Base(a.HostName) // "/rack/host"
		}
		if host == "." || host == "/" {
			host = ""
		}
		if a.Result == "SUCCESS" || a.Result == "SUCCEEDED" {
			state = "succeeded"
		}
		t.Attempts = append(t.Attempts, HistoryAttempt{Node: host, State: state, PlaceMS: a.StartTime, EndMS: a.FinishTime})
	}
	if len(t.Attempts) == 0 && in.StartTime > 0 && in.FinishTime >= in.StartTime {
		t.Attempts = []HistoryAttempt{{State: "succeeded", PlaceMS: in.StartTime, EndMS: in.FinishTime}}
	}
	if len(t.Attempts) == 0 {
		return nil, fmt.Errorf("task %s has no attempt with startTime and finishTime", truncate(in.TaskID))
	}
	return t, nil
}
