package ui

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"io"
	"regexp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Simulation is a simulated schedule. Its times are in milliseconds from the
// first second of the simulation.
type Simulation struct {
	Name     string
	Numbers  []SimulatedNumber // the same ones in each simulation of a file
	Plan     *droverv1.GetScheduleResponse
	Jobs     []SimulatedJob    // in the order of the list
	MoreJobs int               // that Jobs leaves out
	Cluster  []SimulatedSeries // of the whole cluster over time
	Tenants  []SimulatedSeries // the part of the CPU that each occupied
	Reasons  []SimulatedNumber // what tasks waited for
}

// SimulatedJob is a job with its results. Times are in milliseconds; Wait and Response are
// negative if it never started or ended.
type SimulatedJob struct {
	Number                int
	Name, Tenant, Outcome string
	Tasks                 int
	SubmitMs, WaitMs      int64
	ResponseMs            int64
	Slowdown              float64 // response over the time on an empty cluster
	DeadlineMs            int64   // 0: none
	Missed                bool
	Suspensions           int
	NodeLocal, WithInput  int // tasks
}

// SimulatedSeries is one number over time, in steps of the same length.
type SimulatedSeries struct {
	Name   string
	Now    string // its size in words
	Top    float64
	Values []float64
}

func (s *SimulatedSeries) picture() series {
	at := make([]int64, len(s.Values))
	for i := range at {
		at[i] = int64(i)
	}
	v := series{Name: s.Name, Now: s.Now}
	if len(at) > 0 {
		v.Picture = linePicture(at, s.Values, s.Top, nil)
	}
	return v
}

func pictures(list []SimulatedSeries) (out []series) {
	for i := range list {
		out = append(out, list[i].picture())
	}
	return out
}

// SimulatedNumber is a result with its unit.
type SimulatedNumber struct{ Name, Value string }

// WriteSimulations writes one HTML file with the schedules of simulations, as
// the page shows that of a cluster. The file refers to nothing else.
func WriteSimulations(w io.Writer, title string, list []Simulation) error {
	f := &simulationFile{Title: title, Style: template.CSS(staticAssets()["page.css"].body), Script: template.JS(bundle("format.js", "canvas.js", "morph.js", "stream.js", "page.js", "schedule.js"))}
	f.Policy = "default-src 'none'; img-src data:; script-src " + sourceHash([]byte(f.Script)) + "; style-src " + sourceHash([]byte(f.Style))
	for i, s := range list {
		l := newScheduleLayout(s.Plan, "")
		x := l.index
		v := simulationView{Name: s.Name, Data: l.whole(), ByJob: newScheduleLayout(s.Plan, "jobs").whole(), Cluster: pictures(s.Cluster), Tenants: pictures(s.Tenants), Reasons: s.Reasons, Jobs: s.Jobs, MoreJobs: s.MoreJobs, More: int(s.Plan.GetMore())}
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
	Name             string
	Data             *scheduleData // by node
	ByJob            *scheduleData // a waterfall of the attempts
	Cluster, Tenants []series
	Reasons          []SimulatedNumber
	Jobs             []SimulatedJob
	MoreJobs         int
	Rows             []simulatedRow
	More             int
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
