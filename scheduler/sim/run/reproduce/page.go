package reproduce

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// Report is what reproduce shows.
type Report struct {
	Outcomes []*Outcome
	Cal      *Calibration
	Score    Score
	Command  string
}

// NewReport puts outcomes together.
func NewReport(outs []*Outcome, cal *Calibration, command string) *Report {
	r := &Report{Outcomes: outs, Cal: cal, Command: command}
	r.Score = Count(r.Verdicts())
	return r
}

// Verdicts lists the verdicts of all experiments.
func (r *Report) Verdicts() []Verdict {
	var out []Verdict
	for _, o := range r.Outcomes {
		out = append(out, o.Verdicts...)
	}
	return out
}

// Row is a claim as the pages show it, and as results.json holds it.
type Row struct {
	ID         string  `json:"id"`
	Paper      string  `json:"paper"`
	Figure     string  `json:"figure"`
	Claim      string  `json:"claim"`
	Kind       Kind    `json:"kind"`
	PaperValue float64 `json:"paper_value"`
	Ours       float64 `json:"ours"`
	Half       float64 `json:"ci95"`
	Seeds      int     `json:"seeds"`
	Effect     float64 `json:"effect"` // our distance over the paper's; 0 where there is none
	SignOK     bool    `json:"sign_ok"`
	Reproduced bool    `json:"reproduced"`
	Weight     float64 `json:"weight"`
	Why        string  `json:"why,omitempty"`
	Missing    string  `json:"missing,omitempty"`
}

func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

func (v *Verdict) row() Row {
	return Row{v.ID, v.Paper, v.Figure, v.Text, v.Kind, v.Paper0, finite(v.Ours.Mean), finite(v.Ours.Half), v.Ours.N, finite(v.Effect), v.SignOK, v.Reproduced, v.Weight, v.Why, v.Missing}
}

// Rows are all claims.
func (r *Report) Rows() []Row {
	var out []Row
	for _, v := range r.Verdicts() {
		out = append(out, v.row())
	}
	return out
}

// Result is one word.
func (w Row) Result() string {
	switch {
	case w.Missing != "":
		return "not run"
	case w.Reproduced:
		return "reproduced"
	case w.SignOK:
		return "sign only"
	default:
		return "missed"
	}
}

// PaperText is the paper's value as the claim's kind reads it.
func (w Row) PaperText() string {
	if w.Kind == Sign {
		return map[bool]string{true: "above", false: "below"}[w.PaperValue > 0]
	}
	return fmt.Sprintf("%.4g", w.PaperValue)
}

// OursText is our value with its interval.
func (w Row) OursText() string {
	if w.Missing != "" {
		return "–"
	}
	if w.Half == 0 {
		return fmt.Sprintf("%.4g", w.Ours)
	}
	return fmt.Sprintf("%.4g ± %.2g", w.Ours, w.Half)
}

// EffectText is the size of the effect.
func (w Row) EffectText() string {
	if w.Effect == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", w.Effect)
}

// Assumptions lists the calibrated parameters by name.
func (r *Report) Assumptions() [][3]string {
	var out [][3]string
	for _, k := range slices.Sorted(maps.Keys(r.Cal.Values)) {
		out = append(out, [3]string{k, fmt.Sprint(r.Cal.Values[k]), r.Cal.Why[k]})
	}
	return out
}

// Plots lists the names of an outcome's plots.
func (o *Outcome) Plots() []string { return slices.Sorted(maps.Keys(o.Curves)) }

var unsafe = regexp.MustCompile(`[^a-z0-9]+`)

// File is the path of a plot without its ending, below the report's folder.
func (o *Outcome) File(plot string) string {
	return "plots/" + strings.Trim(unsafe.ReplaceAllString(strings.ToLower(o.Name+" "+plot), "-"), "-")
}

// Draw writes all plots below dir, which has a folder plots.
func (r *Report) Draw(dir string) error {
	for _, o := range r.Outcomes {
		for _, name := range o.Plots() {
			p, err := report.Lines(name, "", "", false, sorted(o.Curves[name])...)
			if err != nil {
				return fmt.Errorf("plot %s: %w", name, err)
			}
			if err := report.Save(p, filepath.Join(dir, filepath.FromSlash(o.File(name)))); err != nil {
				return err
			}
		}
	}
	return nil
}

// sorted orders the points of each line by X, and lines by name.
func sorted(lines []report.Line) []report.Line {
	out := slices.Clone(lines)
	for i := range out {
		l := &out[i]
		at := make([]int, len(l.X))
		for k := range at {
			at[k] = k
		}
		slices.SortStableFunc(at, func(a, b int) int { return int(math.Copysign(1, l.X[a]-l.X[b])) })
		s := report.Line{Name: l.Name}
		for _, k := range at {
			s.X, s.Y, s.Err = append(s.X, l.X[k]), append(s.Y, l.Y[k]), append(s.Err, l.Err[k])
		}
		*l = s
	}
	slices.SortFunc(out, func(a, b report.Line) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// test is the test of "reproduced" in a sentence.
const test = "A ratio is reproduced when its sign is the paper's, the 95% interval over paired seeds excludes 1, and (ours − 1)/(paper − 1) lies in 0.5 to 2; " +
	"a difference likewise about 0; an order when the interval excludes 0 on the paper's side; a band when our mean lies in it."

// Summary is the score in a sentence.
func (r *Report) Summary() string {
	s := r.Score
	part := func(a, b float64) float64 { return 100 * a / max(b, 1e-9) }
	return fmt.Sprintf("%d claims: %d (%.0f%%, by weight %.0f%%) with the paper's sign, %d (%.0f%%, by weight %.0f%%) reproduced.", s.Claims, s.Signs,
		part(float64(s.Signs), float64(s.Claims)), part(s.SignWeight, s.Weight), s.Reproduced, part(float64(s.Reproduced), float64(s.Claims)), part(s.RepWeight, s.Weight))
}

// Markdown writes the report.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# The papers' figures again\n\n%s\n\n%s\n\nMade by `%s`. Calibration: sha256 `%s`.\n", r.Summary(), test, r.Command, r.Cal.Hash)
	for _, o := range r.Outcomes {
		fmt.Fprintf(&b, "\n## %s (%s)\n\n| figure | claim | paper | ours | effect | result | why, if not |\n| --- | --- | --- | --- | --- | --- | --- |\n", o.Name, o.Paper)
		for i := range o.Verdicts {
			x := o.Verdicts[i].row()
			why := x.Why
			if x.Missing != "" {
				why = x.Missing
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", x.Figure, cell(x.Claim), x.PaperText(), x.OursText(), x.EffectText(), x.Result(), cell(why))
		}
		if len(o.Assumes) > 0 {
			fmt.Fprintf(&b, "\nAssumptions: %s.\n", strings.Join(o.Assumes, ", "))
		}
		for _, p := range o.Plots() {
			fmt.Fprintf(&b, "\n![%s](%s.svg)\n", p, o.File(p))
		}
		o.sensitivity(&b)
	}
	b.WriteString("\n## Assumptions\n\nThe same under every scheduler, chosen on the baseline's published figures, frozen before the paper's scheduler was run.\n\n| parameter | value | why |\n| --- | --- | --- |\n")
	for _, a := range r.Assumptions() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a[0], a[1], cell(a[2]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// sensitivity writes each claim's mean with each parameter at 0.8 and 1.25.
func (o *Outcome) sensitivity(b *strings.Builder) {
	if len(o.Sensitivity) == 0 {
		return
	}
	var columns []string
	cells := map[string]map[string]float64{}
	for _, s := range o.Sensitivity {
		c := fmt.Sprintf("%s x %g", s.Parameter, s.Factor)
		if !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
		if cells[s.Claim] == nil {
			cells[s.Claim] = map[string]float64{}
		}
		cells[s.Claim][c] = s.Mean
	}
	fmt.Fprintf(b, "\nSensitivity (our value with one parameter changed):\n\n| claim | as it is | %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)+2))
	for i := range o.Verdicts {
		v := &o.Verdicts[i]
		fmt.Fprintf(b, "| %s | %.4g |", v.ID, v.Ours.Mean)
		for _, c := range columns {
			fmt.Fprintf(b, " %.4g |", cells[v.ID][c])
		}
		b.WriteString("\n")
	}
}

var page = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The papers' figures again</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ccc;padding:.3em .5em;text-align:left;vertical-align:top}img{max-width:32em}
.reproduced{color:#060}.missed{color:#a00}.sign{color:#a60}</style></head><body>
<h1>The papers' figures again</h1><p>{{.Summary}}</p><p>{{.Test}}</p><p>Made by <code>{{.Command}}</code>. Calibration: sha256 <code>{{.Cal.Hash}}</code>.</p>
{{range .Outcomes}}{{$o := .}}<h2>{{.Name}} ({{.Paper}})</h2>
<table><tr><th>figure<th>claim<th>paper<th>ours<th>effect<th>result<th>why, if not</tr>
{{range .Lines}}<tr><td>{{.Figure}}<td>{{.Claim}}<td>{{.PaperText}}<td>{{.OursText}}<td>{{.EffectText}}<td class="{{.Result}}">{{.Result}}<td>{{if .Missing}}{{.Missing}}{{else}}{{.Why}}{{end}}</tr>
{{end}}</table>
{{if .Assumes}}<p>Assumptions: {{range .Assumes}}{{.}} {{end}}</p>{{end}}
{{range .Plots}}<img src="{{$o.File .}}.svg" alt="{{.}}"> {{end}}{{end}}
<h2>Assumptions</h2><p>The same under every scheduler, chosen on the baseline's published figures, frozen before the paper's scheduler was run.</p>
<table><tr><th>parameter<th>value<th>why</tr>{{range .Assumptions}}<tr><td>{{index . 0}}<td>{{index . 1}}<td>{{index . 2}}</tr>{{end}}</table>
</body></html>
`))

// Lines are the rows of an outcome.
func (o *Outcome) Lines() []Row {
	var out []Row
	for i := range o.Verdicts {
		out = append(out, o.Verdicts[i].row())
	}
	return out
}

// Test is the test of "reproduced".
func (r *Report) Test() string { return test }

// HTML writes the report as one page beside its plots.
func (r *Report) HTML(w io.Writer) error { return page.Execute(w, r) }

// Write writes report.md, report.html, results.json and the plots into dir,
// which has a folder plots.
func (r *Report) Write(dir string) error {
	if err := r.Draw(dir); err != nil {
		return err
	}
	if err := run.WriteFile(filepath.Join(dir, "report.md"), r.Markdown); err != nil {
		return err
	}
	if err := run.WriteFile(filepath.Join(dir, "report.html"), r.HTML); err != nil {
		return err
	}
	return run.WriteFile(filepath.Join(dir, "results.json"), func(w io.Writer) error {
		return report.WriteJSON(w, map[string]any{"calibration_sha256": r.Cal.Hash, "score": r.Score, "claims": r.Rows(), "command": r.Command})
	})
}
