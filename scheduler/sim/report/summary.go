package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// Summary is one run in numbers. Names carry their units; shares are from 0
// to 1. Means over jobs are over the jobs that ended.
type Summary struct {
	Scheduler string `json:"scheduler"`
	Model     string `json:"model"`
	Jobs      int    `json:"jobs"`
	Numbers
	Events     uint64             `json:"events"`
	EventsPerS float64            `json:"events_per_s"` // of the machine it ran on: the one number that two runs of a seed differ in
	Seed       uint64             `json:"seed"`
	Runs       int                `json:"runs"`
	CI95       map[string]float64 `json:"ci95,omitempty"` // half widths over runs, by name
	Parameters map[string]string  `json:"parameters"`
}

// Numbers are what is averaged over runs.
type Numbers struct {
	MeanResponse        float64 `json:"mean_response_s"`
	MedianResponse      float64 `json:"median_response_s"`
	P95Response         float64 `json:"p95_response_s"`
	P99Response         float64 `json:"p99_response_s"`
	MeanWait            float64 `json:"mean_wait_s"`
	MeanSlowdown        float64 `json:"mean_slowdown"`         // response over the time alone on the cluster
	MeanBoundedSlowdown float64 `json:"mean_bounded_slowdown"` // likewise with at least 10 s, at least 1
	Makespan            float64 `json:"makespan_s"`
	CPU                 float64 `json:"utilisation_cpu"` // part of the capacity held, over the makespan
	Memory              float64 `json:"utilisation_memory"`
	IO                  float64 `json:"utilisation_io"`
	UsefulCPU           float64 `json:"utilisation_cpu_useful"` // by attempts that succeeded
	LocalityNode        float64 `json:"locality_node"`          // of tasks whose input has a place
	LocalityRack        float64 `json:"locality_rack"`          // on another node of a rack with it
	DeadlineRate        float64 `json:"deadline_rate"`          // of jobs with one, met; 1 if there are none
	DeadlineJobs        float64 `json:"deadline_jobs"`
	Throughput          float64 `json:"throughput_job_units_per_s"` // times alone in job units, over the makespan
	WorkLost            float64 `json:"work_lost_cpu_s"`
	Suspensions         float64 `json:"suspensions"`
	Migrations          float64 `json:"migrations"`
	Kills               float64 `json:"kills"`
	BrokenPromises      float64 `json:"broken_promises"`
	NodesLost           float64 `json:"nodes_lost"`
	Placements          float64 `json:"placements"`
	Unfinished          float64 `json:"jobs_unfinished"`
	MeanJobsInSystem    float64 `json:"mean_jobs_in_system"`
}

// DefaultJobUnit is the unit of throughput in 3DSF, seconds.
const DefaultJobUnit = 0.1

// boundedFrom is the threshold of the bounded slowdown, seconds.
const boundedFrom = 10

// Summarise works out the numbers of a run. jobUnit is in seconds.
func Summarise(c *engine.Config, r *engine.Result, jobUnit float64) Numbers {
	n := Numbers{Makespan: r.Makespan.Seconds(), CPU: r.Used[scheduler.CPU], Memory: r.Used[scheduler.Memory], IO: r.Used[scheduler.IO],
		UsefulCPU: r.Useful, WorkLost: r.WorkLostCPU, Suspensions: float64(r.Suspensions), Migrations: float64(r.Migrations), Kills: float64(r.Kills),
		BrokenPromises: float64(r.BrokenPromises), NodesLost: float64(r.NodesLost), Placements: float64(r.Placements), Unfinished: float64(r.Unfinished),
		MeanJobsInSystem: r.Little[0]}
	var responses []float64
	met, units := 0.0, 0.0
	for i := range r.Jobs {
		j := &r.Jobs[i]
		if d := c.Jobs[i].Deadline; d > 0 {
			n.DeadlineJobs++
			if j.Outcome == scheduler.JobSucceeded && j.Finish <= d {
				met++
			}
		}
		if j.Outcome == 0 {
			continue
		}
		response := j.Response().Seconds()
		responses = append(responses, response)
		alone := j.Alone.Seconds()
		units += alone / jobUnit
		n.MeanWait += max(0, j.Wait().Seconds())
		n.MeanSlowdown += response / max(alone, 1e-9)
		n.MeanBoundedSlowdown += max(1, response/max(alone, boundedFrom))
	}
	n.DeadlineRate = 1
	if n.DeadlineJobs > 0 {
		n.DeadlineRate = met / n.DeadlineJobs
	}
	n.over(responses, units)
	if r.WithInput > 0 {
		n.LocalityNode = float64(r.NodeLocal) / float64(r.WithInput)
		n.LocalityRack = float64(r.RackLocal) / float64(r.WithInput)
	}
	return n
}

// over divides the sums by the jobs and takes the percentiles.
func (n *Numbers) over(responses []float64, units float64) {
	if len(responses) == 0 {
		return
	}
	count := float64(len(responses))
	n.MeanWait /= count
	n.MeanSlowdown /= count
	n.MeanBoundedSlowdown /= count
	n.MeanResponse = sum(responses) / count
	if n.Makespan > 0 {
		n.Throughput = units / n.Makespan
	}
	slices.Sort(responses)
	n.MedianResponse, n.P95Response, n.P99Response = Quantile(responses, 0.5), Quantile(responses, 0.95), Quantile(responses, 0.99)
}

func sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

// Quantile gives the q-quantile of sorted values, between two of them by
// linear interpolation.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Names lists the names of Numbers in their order.
func Names() []string {
	var names []string
	for _, f := range fields(&Numbers{}) {
		names = append(names, f.name)
	}
	return names
}

// Get gives a number by its name.
func (n *Numbers) Get(name string) (float64, bool) {
	for _, f := range fields(n) {
		if f.name == name {
			return *f.value, true
		}
	}
	return 0, false
}

type field struct {
	name  string
	value *float64
}

// fields lists Numbers by name: the one place where both stand.
func fields(n *Numbers) []field {
	return []field{{"mean_response_s", &n.MeanResponse}, {"median_response_s", &n.MedianResponse}, {"p95_response_s", &n.P95Response},
		{"p99_response_s", &n.P99Response}, {"mean_wait_s", &n.MeanWait}, {"mean_slowdown", &n.MeanSlowdown},
		{"mean_bounded_slowdown", &n.MeanBoundedSlowdown}, {"makespan_s", &n.Makespan}, {"utilisation_cpu", &n.CPU},
		{"utilisation_memory", &n.Memory}, {"utilisation_io", &n.IO}, {"utilisation_cpu_useful", &n.UsefulCPU},
		{"locality_node", &n.LocalityNode}, {"locality_rack", &n.LocalityRack}, {"deadline_rate", &n.DeadlineRate},
		{"deadline_jobs", &n.DeadlineJobs}, {"throughput_job_units_per_s", &n.Throughput}, {"work_lost_cpu_s", &n.WorkLost},
		{"suspensions", &n.Suspensions}, {"migrations", &n.Migrations}, {"kills", &n.Kills}, {"broken_promises", &n.BrokenPromises},
		{"nodes_lost", &n.NodesLost}, {"placements", &n.Placements}, {"jobs_unfinished", &n.Unfinished},
		{"mean_jobs_in_system", &n.MeanJobsInSystem}}
}

// MeanOf gives means over runs and half widths of 95% intervals by name.
func MeanOf(runs []Numbers) (Numbers, map[string]float64) {
	var out Numbers
	ci := map[string]float64{}
	to := fields(&out)
	for k := range to {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = *fields(&runs[i])[k].value
		}
		e := Estimate(values)
		*to[k].value = e.Mean
		if len(runs) > 1 {
			ci[to[k].name] = e.Half
		}
	}
	return out, ci
}

// WriteJSON writes v as indented JSON with a newline.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// WriteJobs writes one row a job, instants in seconds from second 0; what
// never happened is empty.
func WriteJobs(w io.Writer, c *engine.Config, r *engine.Result) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"job", "name", "tag", "tenant", "submit_s", "start_s", "finish_s", "wait_s", "response_s", "alone_s", "slowdown",
		"deadline_s", "met", "outcome", "tasks", "node_local_tasks", "rack_local_tasks", "tasks_with_input", "suspensions", "lost_cpu_s"}); err != nil {
		return err
	}
	for i := range r.Jobs {
		j, in := &r.Jobs[i], &c.Jobs[i]
		row := []string{strconv.Itoa(i + 1), in.Name, in.Tag, strconv.Itoa(int(in.Tenant)), secs(in.Submit), "", "", "", "", secs(j.Alone), "", "", "", "unfinished",
			strconv.Itoa(int(j.Tasks)), strconv.Itoa(int(j.NodeLocal)), strconv.Itoa(int(j.RackLocal)), strconv.Itoa(int(j.WithInput)),
			strconv.Itoa(int(j.Suspends)), number(j.LostCPU)}
		if j.Start >= 0 {
			row[5], row[7] = secs(j.Start), secs(j.Wait())
		}
		if j.Outcome != 0 {
			row[6], row[8], row[13] = secs(j.Finish), secs(j.Response()), j.Outcome.String()
			row[10] = number(j.Response().Seconds() / max(j.Alone.Seconds(), 1e-9))
		}
		if in.Deadline > 0 {
			row[11] = secs(in.Deadline)
			row[12] = strconv.FormatBool(j.Outcome == scheduler.JobSucceeded && j.Finish <= in.Deadline)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func secs(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func number(x float64) string { return strconv.FormatFloat(x, 'g', 10, 64) }

// Text writes the numbers for people.
func (s *Summary) Text(w io.Writer) {
	fmt.Fprintf(w, "%s: %d jobs, seed %d, %d run(s)\n", s.Scheduler, s.Jobs, s.Seed, s.Runs)
	for _, f := range fields(&s.Numbers) {
		half := ""
		if h, ok := s.CI95[f.name]; ok {
			half = fmt.Sprintf(" ± %.4g", h)
		}
		fmt.Fprintf(w, "  %-28s %.6g%s\n", f.name, *f.value, half)
	}
	fmt.Fprintf(w, "  %-28s %d (%.0f/s)\n", "events", s.Events, s.EventsPerS)
}
