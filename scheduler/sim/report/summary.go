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

// Summary is the result of one or more simulations of one setup in numbers. Names carry their
// units; shares are from 0 to 1. Means over jobs count the jobs that succeeded.
type Summary struct {
	Scheduler string `json:"scheduler"`
	Model     string `json:"model"`
	Jobs      int    `json:"jobs"`
	Numbers
	Events     uint64             `json:"events"`
	EventsPerS float64            `json:"events_per_s"` // depends on the machine: the one number that differs between runs of a seed
	Seed       uint64             `json:"seed"`
	Runs       int                `json:"runs"`
	CI95       map[string]float64 `json:"ci95,omitempty"` // half widths over simulations, by name
	Parameters map[string]string  `json:"parameters"`
	Tenants    []TenantNumbers    `json:"tenants,omitempty"`
	// Refused counts the jobs of the first simulation that can never run on the cluster, which
	// jobs_unfinished counts too. FirstRefused names the first and what it lacks.
	Refused      int64  `json:"jobs_refused"`
	FirstRefused string `json:"first_refused,omitempty"`
}

// Numbers are the values that are averaged over simulations.
type Numbers struct {
	MeanResponse        float64 `json:"mean_response_s"`
	MedianResponse      float64 `json:"median_response_s"`
	P95Response         float64 `json:"p95_response_s"`
	P99Response         float64 `json:"p99_response_s"`
	MeanWait            float64 `json:"mean_wait_s"`
	MeanSlowdown        float64 `json:"mean_slowdown"`         // response over the duration alone on the cluster
	MeanBoundedSlowdown float64 `json:"mean_bounded_slowdown"` // as above with a duration of at least 10 s, and at least 1
	Makespan            float64 `json:"makespan_s"`
	UtilisationCPU      float64 `json:"utilisation_cpu"` // fraction of the capacity occupied, over the makespan
	UtilisationMemory   float64 `json:"utilisation_memory"`
	UtilisationIO       float64 `json:"utilisation_io"`
	UsefulCPU           float64 `json:"utilisation_cpu_useful"` // by attempts that succeeded
	LocalityNode        float64 `json:"locality_node"`          // of tasks whose input has a location
	LocalityRack        float64 `json:"locality_rack"`          // on another node of a rack with the input
	DeadlineRate        float64 `json:"deadline_rate"`          // deadlines met, of jobs with a deadline; 1 if there are none
	DeadlineJobs        float64 `json:"deadline_jobs"`
	Throughput          float64 `json:"throughput_job_units_per_s"` // durations alone in job units, over the makespan
	LostCPU             float64 `json:"work_lost_cpu_s"`
	Suspensions         float64 `json:"suspensions"`
	Migrations          float64 `json:"migrations"`
	Kills               float64 `json:"kills"`
	ViolatedGuarantees  float64 `json:"violated_guarantees"`
	NodesLost           float64 `json:"nodes_lost"`
	Placements          float64 `json:"placements"`
	Unfinished          float64 `json:"jobs_unfinished"`
	Missed              float64 `json:"jobs_missed"` // stopped because their deadline was missed (on_miss)
	MeanJobsInSystem    float64 `json:"mean_jobs_in_system"`
}

// DefaultJobUnit is 3DSF's unit of throughput, in seconds.
const DefaultJobUnit = 0.1

// slowdownThreshold is the threshold of the bounded slowdown, in seconds.
const slowdownThreshold = 10

// Summarise computes the numbers of a simulation. jobUnit is in seconds.
func Summarise(c *engine.Config, r *engine.Result, jobUnit float64) Numbers {
	n := Numbers{Makespan: r.Makespan.Seconds(), UtilisationCPU: r.Used[scheduler.CPU], UtilisationMemory: r.Used[scheduler.Memory], UtilisationIO: r.Used[scheduler.IO],
		UsefulCPU: r.UsefulCPU, LostCPU: r.WorkLostCPU, Suspensions: float64(r.Suspensions), Migrations: float64(r.Migrations), Kills: float64(r.Kills),
		ViolatedGuarantees: float64(r.ViolatedGuarantees), NodesLost: float64(r.NodesLost), Placements: float64(r.Placements), Unfinished: float64(r.Unfinished),
		MeanJobsInSystem: r.LittlesLaw[0]}
	var responses []float64
	met, units := 0.0, 0.0
	for i := range r.Jobs {
		j := &r.Jobs[i]
		if d := c.Jobs[i].Deadline; d > 0 {
			n.DeadlineJobs++
			if j.Outcome == engine.JobSucceeded && j.Finish <= d {
				met++
			}
		}
		if j.Outcome == engine.JobMissed {
			n.Missed++
		}
		if j.Outcome != engine.JobSucceeded { // a job that was stopped did not do its work, however soon it ended
			continue
		}
		response := j.Response().Seconds()
		responses = append(responses, response)
		alone := j.Alone.Seconds()
		units += alone / jobUnit
		n.MeanWait += max(0, j.Wait().Seconds())
		n.MeanSlowdown += response / max(alone, 1e-9)
		n.MeanBoundedSlowdown += max(1, response/max(alone, slowdownThreshold))
	}
	n.DeadlineRate = 1
	if n.DeadlineJobs > 0 {
		n.DeadlineRate = met / n.DeadlineJobs
	}
	n.divideByJobs(responses, units)
	if r.WithInput > 0 {
		n.LocalityNode = float64(r.NodeLocal) / float64(r.WithInput)
		n.LocalityRack = float64(r.RackLocal) / float64(r.WithInput)
	}
	return n
}

// divideByJobs divides the sums by the number of jobs and sets the percentiles.
func (n *Numbers) divideByJobs(responses []float64, units float64) {
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
	n.MedianResponse, n.P95Response, n.P99Response = quantile(responses, 0.5), quantile(responses, 0.95), quantile(responses, 0.99)
}

func sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

// quantile returns the q-quantile of sorted values, with linear interpolation.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	position := q * float64(len(sorted)-1)
	i := int(position)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (position-float64(i))*(sorted[i+1]-sorted[i])
}

// ofSucceeded are the numbers that are means over the jobs that succeeded.
var ofSucceeded = []string{"mean_response_s", "median_response_s", "p95_response_s", "p99_response_s", "mean_wait_s", "mean_slowdown", "mean_bounded_slowdown"}

// Known reports whether a number has a value: without a job that succeeded, its mean over
// such jobs has none. jobs is how many there were.
func (n *Numbers) Known(name string, jobs int) bool {
	return int(n.Unfinished+n.Missed) < jobs || !slices.Contains(ofSucceeded, name)
}

// NumberNames lists the names of Numbers in their order.
func NumberNames() []string {
	var names []string
	for _, f := range numberFields(&Numbers{}) {
		names = append(names, f.name)
	}
	return names
}

// Get returns the number with a name, and whether there is one.
func (n *Numbers) Get(name string) (float64, bool) {
	for _, f := range numberFields(n) {
		if f.name == name {
			return *f.value, true
		}
	}
	return 0, false
}

type numberField struct {
	name  string
	value *float64
}

// numberFields lists the fields of n with their names. It is the only place that maps names to
// fields.
func numberFields(n *Numbers) []numberField {
	return []numberField{{"mean_response_s", &n.MeanResponse}, {"median_response_s", &n.MedianResponse}, {"p95_response_s", &n.P95Response},
		{"p99_response_s", &n.P99Response}, {"mean_wait_s", &n.MeanWait}, {"mean_slowdown", &n.MeanSlowdown},
		{"mean_bounded_slowdown", &n.MeanBoundedSlowdown}, {"makespan_s", &n.Makespan}, {"utilisation_cpu", &n.UtilisationCPU},
		{"utilisation_memory", &n.UtilisationMemory}, {"utilisation_io", &n.UtilisationIO}, {"utilisation_cpu_useful", &n.UsefulCPU},
		{"locality_node", &n.LocalityNode}, {"locality_rack", &n.LocalityRack}, {"deadline_rate", &n.DeadlineRate},
		{"deadline_jobs", &n.DeadlineJobs}, {"throughput_job_units_per_s", &n.Throughput}, {"work_lost_cpu_s", &n.LostCPU},
		{"suspensions", &n.Suspensions}, {"migrations", &n.Migrations}, {"kills", &n.Kills}, {"violated_guarantees", &n.ViolatedGuarantees},
		{"nodes_lost", &n.NodesLost}, {"placements", &n.Placements}, {"jobs_unfinished", &n.Unfinished}, {"jobs_missed", &n.Missed},
		{"mean_jobs_in_system", &n.MeanJobsInSystem}}
}

// MeanOf returns means over simulations, and the half widths of their 95% intervals by name.
func MeanOf(runs []Numbers) (Numbers, map[string]float64) {
	var out Numbers
	ci := map[string]float64{}
	to := numberFields(&out)
	for k := range to {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = *numberFields(&runs[i])[k].value
		}
		e := Estimate(values)
		*to[k].value = e.Mean
		if len(runs) > 1 {
			ci[to[k].name] = e.HalfWidth
		}
	}
	return out, ci
}

// WriteJSON writes v as indented JSON with a final newline.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// WriteJobs writes one CSV row per job, with times in seconds from second 0. Fields without a value
// are empty.
func WriteJobs(w io.Writer, c *engine.Config, r *engine.Result) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"job", "name", "tag", "tenant", "submit_s", "start_s", "finish_s", "wait_s", "response_s", "alone_s", "slowdown",
		"deadline_s", "met", "outcome", "tasks", "node_local_tasks", "rack_local_tasks", "tasks_with_input", "suspensions", "lost_cpu_s"}); err != nil {
		return err
	}
	for i := range r.Jobs {
		j, in := &r.Jobs[i], &c.Jobs[i]
		row := []string{strconv.Itoa(i + 1), in.Name, in.Tag, TenantName(c, in.Tenant), formatSeconds(in.Submit), "", "", "", "", formatSeconds(j.Alone), "", "", "", "unfinished",
			strconv.Itoa(int(j.Tasks)), strconv.Itoa(int(j.NodeLocal)), strconv.Itoa(int(j.RackLocal)), strconv.Itoa(int(j.WithInput)),
			strconv.Itoa(int(j.Suspends)), formatFloat(j.LostCPU)}
		if j.Refused {
			row[13] = "refused"
		}
		if j.Start >= 0 {
			row[5], row[7] = formatSeconds(j.Start), formatSeconds(j.Wait())
		}
		if j.Outcome != 0 {
			row[6], row[8], row[13] = formatSeconds(j.Finish), formatSeconds(j.Response()), j.Outcome.String()
			row[10] = formatFloat(j.Response().Seconds() / max(j.Alone.Seconds(), 1e-9))
		}
		if in.Deadline > 0 {
			row[11] = formatSeconds(in.Deadline)
			row[12] = strconv.FormatBool(j.Outcome == engine.JobSucceeded && j.Finish <= in.Deadline)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func formatSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func formatFloat(x float64) string { return strconv.FormatFloat(x, 'g', 10, 64) }

// MarshalJSON writes the numbers that have no value as null.
func (s Summary) MarshalJSON() ([]byte, error) {
	type plain Summary
	if s.Known(ofSucceeded[0], s.Jobs) {
		return json.Marshal(plain(s))
	}
	return json.Marshal(struct {
		plain
		MeanResponse        *float64 `json:"mean_response_s"`
		MedianResponse      *float64 `json:"median_response_s"`
		P95Response         *float64 `json:"p95_response_s"`
		P99Response         *float64 `json:"p99_response_s"`
		MeanWait            *float64 `json:"mean_wait_s"`
		MeanSlowdown        *float64 `json:"mean_slowdown"`
		MeanBoundedSlowdown *float64 `json:"mean_bounded_slowdown"`
	}{plain: plain(s)})
}

// maxTextTenants limits the tenants of WriteText.
const maxTextTenants = 20

// WriteText writes the numbers for people.
func (s *Summary) WriteText(w io.Writer) {
	fmt.Fprintf(w, "%s: %d jobs, seed %d, %d run(s)\n", s.Scheduler, s.Jobs, s.Seed, s.Runs)
	for _, f := range numberFields(&s.Numbers) {
		half := ""
		if h, ok := s.CI95[f.name]; ok {
			half = fmt.Sprintf(" ± %.4g", h)
		}
		if !s.Known(f.name, s.Jobs) {
			fmt.Fprintf(w, "  %-28s -\n", f.name)
			continue
		}
		fmt.Fprintf(w, "  %-28s %.6g%s\n", f.name, *f.value, half)
	}
	fmt.Fprintf(w, "  %-28s %d (%.0f/s)\n", "events", s.Events, s.EventsPerS)
	if len(s.Tenants) > 1 {
		fmt.Fprintf(w, "  %-20s %8s %8s %16s %14s %10s\n", "tenant", "weight", "jobs", "mean_response_s", "deadline_rate", "cpu_share")
		for i, t := range s.Tenants {
			if i == maxTextTenants {
				fmt.Fprintf(w, "  and %d tenants more: see -json\n", len(s.Tenants)-i)
				break
			}
			response := fmt.Sprintf("%.6g", t.MeanResponse)
			if t.noneSucceeded() {
				response = "-"
			}
			fmt.Fprintf(w, "  %-20s %8.4g %8.6g %16s %14.4g %10.4g\n", t.Tenant, t.Weight, t.Jobs, response, t.DeadlineRate, t.CPUShare)
		}
	}
	if s.Refused > 0 {
		fmt.Fprintf(w, "  %d of %d jobs can never run here and count as unfinished; the first: %s\n", s.Refused, s.Jobs, s.FirstRefused)
	}
}
