package hcl

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/drover-run/drover/jobspec"
)

// MaxFile is the largest job file that is read, in bytes.
const MaxFile = 4 << 20

// Error holds every problem of one job file with its place.
type Error struct {
	Diags hcl.Diagnostics
	file  string
	src   []byte
}

// Error shows each problem with file, line, the text and a hint.
func (e *Error) Error() string {
	var b bytes.Buffer
	e.Write(&b, false)
	return strings.TrimRight(b.String(), "\n")
}

// Write shows the problems as Error does, with colour where wanted.
func (e *Error) Write(w io.Writer, colour bool) {
	files := map[string]*hcl.File{e.file: {Bytes: e.src}}
	// Writing to a buffer or a terminal does not fail in a way that matters here.
	_ = hcl.NewDiagnosticTextWriter(w, files, 100, colour).WriteDiagnostics(e.Diags)
}

// Parse reads a job file: HCL, or canonical JSON where the name ends in
// .json. The job comes back with defaults set and without problems; otherwise
// the error is an *Error (HCL) or names the place in words (JSON).
func Parse(name string, src []byte) (*jobspec.Job, error) {
	if len(src) > MaxFile {
		return nil, fmt.Errorf("%s: a job file has at most %s, this one has %s", name, jobspec.FormatSize(MaxFile), jobspec.FormatSize(int64(len(src))))
	}
	if filepath.Ext(name) == ".json" {
		return parseJSON(name, src)
	}
	text, breaks := spread(src, name)
	at := newPlaces(src, breaks)
	d := &decoder{job: &jobspec.Job{Version: jobspec.Version, KeepFailed: jobspec.DefaultKeepFailed}, places: map[string]hcl.Range{}}
	f, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	d.diags = diags
	if !diags.HasErrors() {
		d.file(f.Body)
	}
	if !d.diags.HasErrors() {
		jobspec.SetDefaults(d.job)
		for _, p := range jobspec.Validate(d.job) {
			d.problem(p)
		}
	}
	if d.diags.HasErrors() {
		at.diagnostics(d.diags)
		return nil, &Error{Diags: d.diags, file: name, src: src}
	}
	return d.job, nil
}

func parseJSON(name string, src []byte) (*jobspec.Job, error) {
	j, err := jobspec.Decode(src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	jobspec.SetDefaults(j)
	if ps := jobspec.Validate(j); len(ps) > 0 {
		lines := make([]string, len(ps))
		for i, p := range ps {
			lines[i] = name + ": " + p.String()
		}
		return nil, fmt.Errorf("%s", strings.Join(lines, "\n"))
	}
	return j, nil
}

// problem turns what Validate found into a diagnostic at the nearest place
// that the text has for it.
func (d *decoder) problem(p jobspec.Problem) {
	path := p.Path
	for {
		if r, ok := d.places[path]; ok {
			d.errorAt(r, p.Text, p.Hint)
			return
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			d.errorAt(d.places[""], p.String(), p.Hint)
			return
		}
		path = path[:i]
	}
}

func (d *decoder) errorAt(r hcl.Range, summary, hint string) {
	d.diags = append(d.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: hint, Subject: &r})
}

// Lines gives the line of each field of a readable job file, by the path that
// jobspec.Problem uses (`stage["map"].resources.memory`); a block counts by
// its header. It is empty for JSON and for text that does not parse.
func Lines(name string, src []byte) map[string]int {
	lines := map[string]int{}
	if filepath.Ext(name) == ".json" {
		return lines
	}
	text, breaks := spread(src, name)
	f, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	if diags.HasErrors() {
		return lines
	}
	at := newPlaces(src, breaks)
	d := &decoder{job: &jobspec.Job{}, places: map[string]hcl.Range{}}
	d.file(f.Body)
	for p, r := range d.places {
		lines[p] = at.back(r).Start.Line
	}
	return lines
}
