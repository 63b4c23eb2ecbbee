package hcl

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/drover-run/drover/jobspec"
)

// MaxFileBytes limits the size of a job file.
const MaxFileBytes = 4 << 20

// Parse parses a job file: HCL, or canonical JSON if the name ends in .json. The
// returned job has its defaults set and is valid. The variables of the file have their
// defaults, or what is given. The error is an *Error for HCL; for JSON it names the field.
func Parse(name string, src []byte, given ...Given) (*jobspec.Job, error) {
	if len(src) > MaxFileBytes {
		return nil, fmt.Errorf("%s: a job file has at most %s, this one has more: put data into files of a stage, or into the input", name, jobspec.FormatSize(MaxFileBytes))
	}
	if filepath.Ext(name) == ".json" {
		return parseJSON(name, src, given)
	}
	if bytes.IndexByte(src, 0) >= 0 { // package hcl has a problem, with its line, for each such byte
		return nil, fmt.Errorf("%s is not text in UTF-8: a job file begins with job \"name\" { … }", name)
	}
	split, problems := splitOneLineBlocks(src, name)
	if json := bytes.TrimSpace(src); !problems.HasErrors() && len(json) > 0 && json[0] == '{' {
		problems = errorAt(hcl.Range{Filename: name, Start: hcl.InitialPos, End: hcl.InitialPos}, "the file begins as JSON does", `name it with .json at the end, or begin with job "name" { … }`)
	}
	if problems.HasErrors() {
		return nil, &Error{Diags: problems, src: src}
	}
	d := newDecoder(src, split)
	f, diags := hclsyntax.ParseConfig(split.text, name, hcl.InitialPos)
	for _, g := range diags {
		cureTemplate(g)
	}
	d.diags = diags
	switch {
	case !isRead(diags) && len(split.values) > 0:
		d.diags = nil // a value may be the cause
	case isRead(diags):
		d.readFile(f.Body, given)
		if d.found {
			jobspec.SetDefaults(d.job)
			for _, p := range jobspec.ValidateRead(d.job, func(path string) bool { _, given := d.ranges[path]; return d.isRead(path, given) }) {
				d.addProblem(p)
			}
		}
	}
	if err := d.finish(src); err != nil {
		return nil, err
	}
	return d.job, nil
}

// finish returns the problems as an *Error, with those of values that a job file cannot have instead of what comes of them.
func (d *decoder) finish(src []byte) error {
	d.at.mapDiagnostics(d.diags)
	d.diags = append(slices.DeleteFunc(d.diags, func(g *hcl.Diagnostic) bool { return g.Subject != nil && d.hasValue(*g.Subject) }), d.values...)
	if !d.diags.HasErrors() {
		return nil
	}
	slices.SortStableFunc(d.diags, byPosition) // package hcl reports unknown names in the order of a map
	return &Error{Diags: d.diags, src: src}
}

// ParseUnnamed is Parse for a job file without a name that would say which of the two it is, such as standard input: it
// is JSON if it begins as JSON does. The name is for messages.
func ParseUnnamed(name string, src []byte, given ...Given) (*jobspec.Job, error) {
	if len(src) <= MaxFileBytes && bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) {
		return parseJSON(name, src, given)
	}
	return Parse(name, src, given...)
}

// isRead reports whether the parser has read the whole file: it then found at most attributes that
// stand twice.
func isRead(diags hcl.Diagnostics) bool {
	return !slices.ContainsFunc(diags, func(g *hcl.Diagnostic) bool { return g.Summary != "Attribute redefined" })
}

// byPosition orders diagnostics by their positions in the file.
func byPosition(a, b *hcl.Diagnostic) int {
	position := func(d *hcl.Diagnostic) int {
		if d.Subject == nil {
			return 0
		}
		return d.Subject.Start.Byte
	}
	return cmp.Compare(position(a), position(b))
}

// addProblem adds a problem found by Validate as a diagnostic, at the range of the
// innermost known part of its path.
func (d *decoder) addProblem(p jobspec.Problem) {
	path := p.Path
	for {
		if r, ok := d.ranges[path]; ok {
			d.addError(r, p.Text, p.Hint)
			return
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			d.addError(d.ranges[""], p.Path+": "+p.Text, p.Hint)
			return
		}
		path = path[:i]
	}
}

// addError adds a problem at a range of the text that was parsed. What the variables there are belongs to the hint.
func (d *decoder) addError(r hcl.Range, summary, hint string) {
	if uses := d.uses[r]; uses != "" {
		hint += "; " + uses
	}
	d.diags = append(d.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: hint, Subject: &r})
}

// FieldLines returns the line of each field of a valid job file by the path that
// jobspec.Problem uses (`stage["map"].resources.memory`); the line of a block is
// that of its header. It is empty for JSON and for text that does not parse.
func FieldLines(name string, src []byte) map[string]int {
	lines := map[string]int{}
	if filepath.Ext(name) == ".json" {
		return lines
	}
	split, problems := splitOneLineBlocks(src, name)
	if problems.HasErrors() {
		return lines
	}
	f, diags := hclsyntax.ParseConfig(split.text, name, hcl.InitialPos)
	if diags.HasErrors() {
		return lines
	}
	d := newDecoder(src, split)
	d.readFile(f.Body, nil)
	for p, r := range d.ranges {
		lines[p] = d.at.originalRange(r).Start.Line
	}
	return lines
}
