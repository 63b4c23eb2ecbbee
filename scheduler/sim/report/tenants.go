package report

import (
	"encoding/json"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// TenantNumbers are the results of one tenant: of its own jobs, not of tenants below it. Means count
// the jobs that succeeded. Over several simulations they are means of the simulations.
type TenantNumbers struct {
	Tenant         string  `json:"tenant"`
	Parent         string  `json:"parent,omitempty"`
	Weight         float64 `json:"weight"`
	Jobs           float64 `json:"jobs"`
	Unfinished     float64 `json:"jobs_unfinished"`
	Missed         float64 `json:"jobs_missed"` // stopped because their deadline was missed
	MeanResponse   float64 `json:"mean_response_s"`
	MedianResponse float64 `json:"median_response_s"`
	P95Response    float64 `json:"p95_response_s"`
	MeanWait       float64 `json:"mean_wait_s"`
	MeanSlowdown   float64 `json:"mean_slowdown"`
	DeadlineJobs   float64 `json:"deadline_jobs"`
	DeadlineRate   float64 `json:"deadline_rate"` // 1 if there are none
	CPUSeconds     float64 `json:"cpu_s"`         // of its successful attempts
	CPUShare       float64 `json:"cpu_share"`     // of those of all tenants
	LostCPU        float64 `json:"work_lost_cpu_s"`
}

// noneSucceeded reports whether no job of the tenant succeeded: means over such jobs have no
// value.
func (n *TenantNumbers) noneSucceeded() bool { return n.Unfinished+n.Missed >= n.Jobs }

// MarshalJSON writes the numbers that have no value as null.
func (n TenantNumbers) MarshalJSON() ([]byte, error) {
	type plain TenantNumbers
	if !n.noneSucceeded() {
		return json.Marshal(plain(n))
	}
	return json.Marshal(struct {
		plain
		MeanResponse   *float64 `json:"mean_response_s"`
		MedianResponse *float64 `json:"median_response_s"`
		P95Response    *float64 `json:"p95_response_s"`
		MeanWait       *float64 `json:"mean_wait_s"`
		MeanSlowdown   *float64 `json:"mean_slowdown"`
	}{plain: plain(n)})
}

// SummariseTenants returns the results of each tenant that has jobs, in the order of their ids.
func SummariseTenants(c *engine.Config, r *engine.Result) []TenantNumbers {
	by := make([]TenantNumbers, max(1, len(c.Tenants)))
	responses, met, total := make([][]float64, len(by)), make([]float64, len(by)), 0.0
	for i := range r.Jobs {
		j, in := &r.Jobs[i], &c.Jobs[i]
		n := &by[in.Tenant]
		n.Jobs++
		n.CPUSeconds += j.UsefulCPU
		n.LostCPU += j.LostCPU
		total += j.UsefulCPU
		if in.Deadline > 0 {
			n.DeadlineJobs++
			if j.Outcome == engine.JobSucceeded && j.Finish <= in.Deadline {
				met[in.Tenant]++
			}
		}
		switch j.Outcome {
		case engine.JobSucceeded:
		case engine.JobMissed:
			n.Missed++
			continue
		default:
			n.Unfinished++
			continue
		}
		response := j.Response().Seconds()
		responses[in.Tenant] = append(responses[in.Tenant], response)
		n.MeanWait += max(0, j.Wait().Seconds())
		n.MeanSlowdown += response / max(j.Alone.Seconds(), 1e-9)
	}
	var out []TenantNumbers
	for i := range by {
		n := &by[i]
		if n.Jobs == 0 {
			continue
		}
		n.Tenant, n.Weight = TenantName(c, scheduler.TenantID(i)), 1
		if i < len(c.Tenants) {
			n.Weight = c.Tenants[i].Weight
			if p := c.Tenants[i].Parent; p != scheduler.NoTenant {
				n.Parent = TenantName(c, p)
			}
		}
		n.finish(responses[i], met[i], total)
		out = append(out, *n)
	}
	return out
}

// finish divides the sums of a tenant.
func (n *TenantNumbers) finish(responses []float64, met, totalCPU float64) {
	if count := float64(len(responses)); count > 0 {
		slices.Sort(responses)
		n.MeanResponse, n.MedianResponse, n.P95Response = sum(responses)/count, quantile(responses, 0.5), quantile(responses, 0.95)
		n.MeanWait /= count
		n.MeanSlowdown /= count
	}
	n.DeadlineRate = 1
	if n.DeadlineJobs > 0 {
		n.DeadlineRate = met / n.DeadlineJobs
	}
	if totalCPU > 0 {
		n.CPUShare = n.CPUSeconds / totalCPU
	}
}

// MeanOfTenants returns the means over simulations, by tenant, in the order of first appearance.
func MeanOfTenants(runs [][]TenantNumbers) []TenantNumbers {
	var out []TenantNumbers
	counts := map[string]float64{}
	index := map[string]int{}
	for _, run := range runs {
		for i := range run {
			n := &run[i]
			k, ok := index[n.Tenant]
			if !ok {
				k = len(out)
				index[n.Tenant] = k
				out = append(out, TenantNumbers{Tenant: n.Tenant, Parent: n.Parent, Weight: n.Weight})
			}
			counts[n.Tenant]++
			to, from := out[k].values(), n.values()
			for v := range to {
				*to[v] += *from[v]
			}
		}
	}
	for i := range out {
		for _, v := range out[i].values() {
			*v /= counts[out[i].Tenant]
		}
	}
	return out
}

// values lists the averaged fields.
func (n *TenantNumbers) values() []*float64 {
	return []*float64{&n.Jobs, &n.Unfinished, &n.Missed, &n.MeanResponse, &n.MedianResponse, &n.P95Response, &n.MeanWait, &n.MeanSlowdown, &n.DeadlineJobs, &n.DeadlineRate,
		&n.CPUSeconds, &n.CPUShare, &n.LostCPU}
}
