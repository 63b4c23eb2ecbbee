package ui

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"io"
	"regexp"
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Simulation is a simulated schedule. Its times are in milliseconds from the
// first second of the simulation.
type Simulation struct {
	Name    string
	Numbers []SimulatedNumber // the same ones in each simulation of a file
	Plan    *droverv1.GetScheduleResponse
}

// SimulatedNumber is a result with its unit.
type SimulatedNumber struct{ Name, Value string }

// WriteSimulations writes one HTML file with the schedules of simulations, as
// the page shows that of a cluster. The file refers to nothing else.
func WriteSimulations(w io.Writer, title string, list []Simulation) error {
	f := &simulationFile{Title: title, Style: template.CSS(staticAssets()["page.css"].body), Script: template.JS(bundle("canvas.js", "page.js", "schedule.js"))}
	f.Policy = "default-src 'none'; img-src data:; script-src " + sourceHash([]byte(f.Script)) + "; style-src " + sourceHash([]byte(f.Style))
	for i, s := range list {
		l := newScheduleLayout(s.Plan, "")
		x := l.index
		v := simulationView{Name: s.Name, Data: l.whole(), Jobs: newScheduleLayout(s.Plan, "jobs").whole(), Tenants: occupiedByTenant(s.Plan), Cut: s.Plan.GetMore() > 0, More: int(s.Plan.GetMore())}
		attempts := x.attempts(s.Plan.GetAttempts(), 2*pageRows)
		for _, a := range attempts {
			v.Rows = append(v.Rows, simulatedRow{a, s.Plan.GetJobs()[x.position(a.GetKey().GetJob())].GetTenant()})
		}
		v.More += len(s.Plan.GetAttempts()) - len(attempts)
		f.Simulations = append(f.Simulations, v)
		for k, n := range s.Numbers {
			if i == 0 {
				f.Numbers = append(f.Numbers, numberRow{Name: n.Name})
			}
			f.Numbers[k].Values = append(f.Numbers[k].Values, n.Value)
		}
	}
	t, err := template.New("simulation").Funcs(helpers).ParseFS(templateFiles, "templates/simulation.html")
	if err != nil {
		return err
	}
	return t.ExecuteTemplate(w, "simulation", f)
}

type simulationFile struct {
	Title, Policy string
	Style         template.CSS
	Script        template.JS
	Numbers       []numberRow
	Simulations   []simulationView
}

type numberRow struct {
	Name   string
	Values []string
}

type simulationView struct {
	Name    string
	Data    *scheduleData // by node
	Jobs    *scheduleData // by job: a waterfall of the attempts
	Tenants []series
	Cut     bool // there are attempts that no picture has
	Rows    []simulatedRow
	More    int
}

// shareSteps is how many values the picture of a tenant's share has.
const shareSteps = 120

// occupiedByTenant draws which part of the CPU the attempts of each tenant occupied,
// by name. O(attempts x shareSteps).
func occupiedByTenant(p *droverv1.GetScheduleResponse) (out []series) {
	total := int64(0)
	for _, n := range p.GetNodes() {
		total += n.GetAllocatable().GetCpu()
	}
	step := (p.GetUntilMs() - p.GetFromMs() + shareSteps - 1) / shareSteps
	if total <= 0 || step <= 0 {
		return nil
	}
	tenants, order, at := map[string][]float64{}, []string{}, make([]int64, shareSteps)
	ofJob := map[uint64]string{}
	for _, j := range p.GetJobs() {
		name := j.GetTenant()
		ofJob[j.GetJob()] = name
		if tenants[name] == nil {
			tenants[name], order = make([]float64, shareSteps), append(order, name)
		}
	}
	for i := range at {
		at[i] = p.GetFromMs() + int64(i)*step
	}
	for _, a := range p.GetAttempts() {
		v := tenants[ofJob[a.GetKey().GetJob()]]
		for i := range v {
			if during := min(a.GetEndMs(), at[i]+step) - max(a.GetPlacedMs(), at[i]); during > 0 {
				v[i] += float64(during*a.GetOccupied().GetCpu()) / float64(step*total)
			}
		}
	}
	slices.Sort(order)
	for _, name := range order {
		v, sum, most := tenants[name], 0.0, 0.0
		for _, x := range v {
			sum, most = sum+x, max(most, x)
		}
		out = append(out, series{Name: name, Now: "mean " + percentText(sum/shareSteps) + ", most " + percentText(most), Picture: linePicture(at, v, 1, nil)})
	}
	return out
}

type simulatedRow struct {
	attemptRow
	Tenant string
}

var (
	importLine = regexp.MustCompile(`(?m)^import .*$`)
	exportWord = regexp.MustCompile(`(?m)^export `)
)

// bundle joins scripts of the package, which import only each other, to one.
// Their names do not collide: a test runs the result.
func bundle(names ...string) string {
	var b bytes.Buffer
	b.WriteString("(() => {\n\"use strict\";\n")
	for _, n := range names {
		b.Write(exportWord.ReplaceAll(importLine.ReplaceAll(staticAssets()[n].body, nil), nil))
	}
	b.WriteString("})();\n")
	return b.String()
}

// sourceHash returns the source of a policy that allows one text.
func sourceHash(text []byte) string {
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
