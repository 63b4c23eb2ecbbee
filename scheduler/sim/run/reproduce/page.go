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

// Report is the output of the package.
type Report struct {
	Outcomes []*Outcome
	Cal      *Calibration
	Score    Score
	Facts    Score // without the claims that follow from another (facts.go)
	Command  string
	Quick    bool
	// FromOtherBuilds counts the samples made by other builds of the program.
	FromOtherBuilds int
}

// NewReport makes the report of outcomes.
func NewReport(outs []*Outcome, env *Env, command string) *Report {
	r := &Report{Outcomes: outs, Cal: env.Cal, Command: command, Quick: env.Quick}
	r.Score = scoreVerdicts(r.Verdicts())
	r.Facts = scoreVerdicts(factVerdicts(r.Verdicts()))
	return r
}

// Verdicts returns the verdicts of all experiments.
func (r *Report) Verdicts() []Verdict {
	var out []Verdict
	for _, o := range r.Outcomes {
		out = append(out, o.Verdicts...)
	}
	return out
}

// Assumptions lists the calibrated parameters by name: name, value, range, reason.
func (r *Report) Assumptions() [][4]string {
	var out [][4]string
	for _, k := range slices.Sorted(maps.Keys(r.Cal.Parameters)) {
		p := r.Cal.Parameters[k]
		out = append(out, [4]string{k, fmt.Sprint(p.Value), fmt.Sprintf("%g to %g", p.Low, p.High), p.Why})
	}
	return out
}

// Plots lists the names of an outcome's plots.
func (o *Outcome) Plots() []string { return slices.Sorted(maps.Keys(o.Curves)) }

var unsafeChars = regexp.MustCompile(`[^a-z0-9]+`)

// File returns the path of a plot without extension, relative to the report's folder.
func (o *Outcome) File(plot string) string {
	return "plots/" + strings.Trim(unsafeChars.ReplaceAllString(strings.ToLower(o.Name+" "+plot), "-"), "-")
}

// drawPlots writes all plots below dir, which must have a folder plots.
func (r *Report) drawPlots(dir string) error {
	for _, o := range r.Outcomes {
		for _, name := range o.Plots() {
			p, err := report.PlotLines(name, "", "", false, sortedLines(o.Curves[name])...)
			if err != nil {
				return fmt.Errorf("plot %s: %w", name, err)
			}
			if err := report.SavePlot(p, filepath.Join(dir, filepath.FromSlash(o.File(name)))); err != nil {
				return err
			}
		}
	}
	return nil
}

// sortedLines orders the lines by name and the points of each line by X.
func sortedLines(lines []report.Line) []report.Line {
	out := slices.Clone(lines)
	for i := range out {
		l := &out[i]
		order := make([]int, len(l.X))
		for k := range order {
			order[k] = k
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, l.X[a]-l.X[b])) })
		s := report.Line{Name: l.Name}
		for _, k := range order {
			s.X, s.Y, s.Err = append(s.X, l.X[k]), append(s.Y, l.Y[k]), append(s.Err, l.Err[k])
		}
		*l = s
	}
	slices.SortFunc(out, func(a, b report.Line) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// reproducedCriterion is the criterion of "reproduced" in a sentence.
const reproducedCriterion = "A ratio is reproduced when its sign is the paper's, the 95% interval over paired seeds excludes 1, and (ours − 1)/(paper − 1) lies in 0.5 to 2; " +
	"a difference in the same way about 0; an order when the interval excludes 0 on the paper's side; a band when our mean lies in it. A reduction to a sixth of the paper's ratio can pass (0.14 for 0.54). A claim marked derived follows from another's value (a mean of two rows, a number printed twice, or use and completion where both do the same work) and counts as no fact."

// Summary returns the score in a sentence.
func (r *Report) Summary() string {
	s, head := r.Score, ""
	if r.Quick {
		head = "A quick run of small workloads: it checks that everything runs, the values mean nothing. "
	}
	if r.FromOtherBuilds > 0 {
		head += fmt.Sprintf("%d samples were made by other builds of the program. ", r.FromOtherBuilds)
	}
	part := func(a, b float64) float64 { return 100 * a / max(b, 1e-9) }
	text := head + fmt.Sprintf("%d claims: %d (%.0f%%, by weight %.0f%%) with the paper's sign, %d (%.0f%%, by weight %.0f%%) reproduced.", s.Claims, s.Signs,
		part(float64(s.Signs), float64(s.Claims)), part(s.SignWeight, s.Weight), s.Reproduced, part(float64(s.Reproduced), float64(s.Claims)), part(s.ReproducedWeight, s.Weight))
	if f := r.Facts; f.Claims < s.Claims {
		text += fmt.Sprintf(" They state %d distinct facts: %d (%.0f%%) with the paper's sign, %d (%.0f%%) reproduced.", f.Claims, f.Signs,
			part(float64(f.Signs), float64(f.Claims)), f.Reproduced, part(float64(f.Reproduced), float64(f.Claims)))
	}
	if weak := r.weakSigns(); weak > 0 {
		text += fmt.Sprintf(" %d of the claims with the paper's sign have at most a quarter of its effect.", weak)
	}
	if n := r.notRun(); n > 0 {
		text += fmt.Sprintf(" %d claims have not been run.", n)
	}
	return text
}

// weakSigns counts the claims that have the paper's sign and at most a quarter of its effect.
func (r *Report) weakSigns() int {
	n := 0
	for _, x := range r.Rows() {
		if x.SignOK && !x.Reproduced && x.Effect > 0 && x.Effect <= 0.25 {
			n++
		}
	}
	return n
}

// notRun counts the claims without a value.
func (r *Report) notRun() int {
	n := 0
	for _, x := range r.Rows() {
		if x.Missing != "" {
			n++
		}
	}
	return n
}

// markdown writes the report as Markdown, with or without its plots.
func (r *Report) markdown(w io.Writer, plots bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# The papers' claims, reproduced\n\n%s\n\n%s\n\nMade by `%s`. Calibration: sha256 `%s`.\n", r.Summary(), reproducedCriterion, r.Command, r.Cal.Hash)
	b.WriteString("\n| paper | claims | paper's sign | reproduced | by weight | facts | paper's sign | reproduced |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, p := range r.Papers() {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %.0f%% | %d | %d | %d |\n", p.Name, p.Claims, p.Signs, p.Reproduced, 100*p.ReproducedWeight/max(p.Weight, 1e-9), p.facts.Claims, p.facts.Signs, p.facts.Reproduced)
	}
	b.WriteString("\n## Changed after results were seen\n\n")
	for _, c := range changesAfterResults {
		fmt.Fprintf(&b, "- %s\n", c)
	}
	for _, o := range r.Outcomes {
		if len(o.Verdicts) > 0 {
			o.markdown(&b, plots)
		}
	}
	r.table(&b)
	b.WriteString("\n## Assumptions\n\nThe same under every scheduler, chosen on the baselines' published figures alone.\n\n| parameter | value | range | why |\n| --- | --- | --- | --- |\n")
	for _, a := range r.Assumptions() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", a[0], a[1], a[2], escapeCell(a[3]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (o *Outcome) markdown(b *strings.Builder, plots bool) {
	fmt.Fprintf(b, "\n## %s (%s)\n", o.Name, o.Paper)
	if o.Made != "" {
		fmt.Fprintf(b, "\n%s.\n", o.Made)
	}
	fmt.Fprintf(b, "\n| figure | claim | paper | ours | effect | weight | result |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, x := range o.Lines() {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %g | %s |\n", x.Figure, escapeCell(x.Claim), x.PaperText(), x.OursText(), x.EffectText(), x.Weight, x.ResultText())
	}
	for _, x := range o.Misses() {
		fmt.Fprintf(b, "\n**%s.** %s\n", strings.Join(x.Claims, ", "), x.Why)
	}
	for _, p := range o.Plots() {
		if !plots {
			break
		}
		fmt.Fprintf(b, "\n![%s](%s.svg)\n", p, o.File(p))
	}
	if s := o.Shifts(); len(s.Columns) > 0 {
		fmt.Fprintf(b, "\nSensitivity: our value with one assumption low or high (✓ reproduced, ~ sign only, ✗ missed, by the mean of %s).\n\n| claim | as it is | %s |\n|%s\n",
			seedsText(s.seeds), strings.Join(s.Columns, " | "), strings.Repeat(" --- |", len(s.Columns)+2))
		for _, row := range s.Rows {
			fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		}
	}
}

func seedsText(n int) string {
	if n == 1 {
		return "one seed"
	}
	return fmt.Sprintf("%d seeds", n)
}

func escapeCell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// paperScore is the score of one paper.
type paperScore struct {
	Name string
	Score
	facts Score
}

// Papers returns the score of each paper.
func (r *Report) Papers() []paperScore {
	var out []paperScore
	by := map[string][]Verdict{}
	for _, v := range r.Verdicts() {
		if by[v.Paper] == nil {
			out = append(out, paperScore{Name: v.Paper})
		}
		by[v.Paper] = append(by[v.Paper], v)
	}
	for i := range out {
		vs := by[out[i].Name]
		out[i].Score, out[i].facts = scoreVerdicts(vs), scoreVerdicts(factVerdicts(vs))
	}
	return out
}

// miss is a set of claims that were not reproduced for the same reason.
type miss struct {
	Claims []string
	Why    string
}

// Misses groups the claims that were not reproduced by their reason.
func (o *Outcome) Misses() []miss {
	var out []miss
	for _, x := range o.Lines() {
		if x.Reproduced {
			continue
		}
		why := x.Why
		if x.Missing != "" {
			why = "Not run: " + x.Missing
		}
		if i := slices.IndexFunc(out, func(m miss) bool { return m.Why == why }); i >= 0 {
			out[i].Claims = append(out[i].Claims, x.ID)
		} else {
			out = append(out, miss{[]string{x.ID}, why})
		}
	}
	return out
}

var htmlPage = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>The papers' claims, reproduced</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ccc;padding:.3em .5em;text-align:left;vertical-align:top}img{max-width:32em}
.small{font-size:12px}.reproduced{color:#060}.missed{color:#a00}.sign{color:#a60}</style></head><body>
<h1>The papers' claims, reproduced</h1><p>{{.Summary}}</p><p>{{.Test}}</p><p>Made by <code>{{.Command}}</code>. Calibration: sha256 <code>{{.Cal.Hash}}</code>.</p>
<table><tr><th>paper<th>claims<th>paper's sign<th>reproduced</tr>{{range .Papers}}<tr><td>{{.Name}}<td>{{.Claims}}<td>{{.Signs}}<td>{{.Reproduced}}</tr>{{end}}</table>
<h2>Changed after results were seen</h2><ul>{{range .Changes}}<li>{{.}}</li>{{end}}</ul>
{{range .Outcomes}}{{$o := .}}{{if .Verdicts}}<h2>{{.Name}} ({{.Paper}})</h2>
<table><tr><th>figure<th>claim<th>paper<th>ours<th>effect<th>weight<th>result</tr>
{{range .Lines}}<tr><td>{{.Figure}}<td>{{.Claim}}<td>{{.PaperText}}<td>{{.OursText}}<td>{{.EffectText}}<td>{{.Weight}}<td class="{{.Result}}">{{.ResultText}}</tr>
{{end}}</table>
{{range .Misses}}<p><b>{{range .Claims}}{{.}} {{end}}</b>: {{.Why}}</p>{{end}}
{{range .Plots}}<img src="{{$o.File .}}.svg" alt="{{.}}"> {{end}}
{{with .Shifts}}{{if .Columns}}<p>Sensitivity: our value with one assumption low or high (✓ reproduced, ~ sign only, ✗ missed, by the mean).</p>
<table class="small"><tr><th>claim<th>as it is{{range .Columns}}<th>{{.}}{{end}}</tr>{{range .Rows}}<tr>{{range .}}<td>{{.}}{{end}}</tr>{{end}}</table>{{end}}{{end}}{{end}}{{end}}
{{with .Table}}{{if .Rows}}<h2>All workloads, all schedulers</h2><p>Each paper's own metric. The best specialist is the best of the schedulers a user may run; sjf and ideal know true sizes. ⚠: 3dsf is more than 5% worse.</p>
<table class="small"><tr>{{range .Columns}}<th>{{.}}{{end}}</tr>{{range .Rows}}<tr>{{range .}}<td>{{.}}{{end}}</tr>{{end}}</table>{{end}}{{end}}
{{range .AllRows}}{{if .Flag}}<p><b>{{.Workload}}, {{.Name}}</b>: {{.Why}}</p>{{end}}{{end}}
<h2>Assumptions</h2><p>The same under every scheduler, chosen on the baselines' published figures alone.</p>
<table><tr><th>parameter<th>value<th>range<th>why</tr>{{range .Assumptions}}<tr><td>{{index . 0}}<td>{{index . 1}}<td>{{index . 2}}<td>{{index . 3}}</tr>{{end}}</table>
</body></html>
`))

// Lines returns the rows of an outcome's claims.
func (o *Outcome) Lines() []Row {
	var out []Row
	for i := range o.Verdicts {
		out = append(out, o.Verdicts[i].row())
	}
	return out
}

// Changes lists what was changed after results were seen.
func (r *Report) Changes() []string { return changesAfterResults }

// Test returns the criterion of "reproduced".
func (r *Report) Test() string { return reproducedCriterion }

// html writes the report as a page that refers to the plots beside it.
func (r *Report) html(w io.Writer) error { return htmlPage.Execute(w, r) }

// Write writes report.md, report.html, results.json and the plots into dir, which must have a
// folder plots.
func (r *Report) Write(dir string) error {
	if err := r.drawPlots(dir); err != nil {
		return err
	}
	if err := run.WriteFile(filepath.Join(dir, "report.md"), func(w io.Writer) error { return r.markdown(w, true) }); err != nil {
		return err
	}
	if err := run.WriteFile(filepath.Join(dir, "report.html"), r.html); err != nil {
		return err
	}
	return run.WriteFile(filepath.Join(dir, "results.json"), func(w io.Writer) error {
		return report.WriteJSON(w, map[string]any{"calibration_sha256": r.Cal.Hash, "score": r.Score, "facts": r.Facts, "claims": r.Rows(), "sensitivity": r.shifts(), "all_schedulers": r.grid(), "quick": r.Quick, "command": r.Command})
	})
}
