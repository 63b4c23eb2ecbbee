package hcl

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/drover-run/drover/jobspec"
)

// decoder walks the body of a job file, fills the job and remembers where each
// of its fields stands, under the paths that jobspec.Problem uses.
type decoder struct {
	job    *jobspec.Job
	diags  hcl.Diagnostics
	places map[string]hcl.Range
}

// field reads one attribute into the job.
type field func(d *decoder, v value)

// value is an attribute's evaluated expression with its place.
type value struct {
	cty.Value
	name string
	at   hcl.Range
}

// block reads one nested block.
type block struct {
	labels int
	once   bool
	read   func(d *decoder, b *hcl.Block)
}

// body reads the attributes and blocks of one body. HCL itself reports
// unknown names and suggests near ones; where it knows none near, what may
// stand there is listed.
func (d *decoder) body(b hcl.Body, path string, fields map[string]field, blocks map[string]block) {
	schema := &hcl.BodySchema{}
	for _, n := range sortedNames(fields) {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: n})
	}
	for _, n := range sortedNames(blocks) {
		labels := []string{"name", "second name"}[:blocks[n].labels]
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: n, LabelNames: labels})
	}
	c, diags := b.Content(schema)
	for _, g := range diags {
		switch {
		case strings.Contains(g.Detail, "Did you mean"):
		case g.Summary == "Unsupported argument" && len(fields) > 0:
			g.Detail += " Expected are: " + strings.Join(sortedNames(fields), ", ") + "."
		case g.Summary == "Unsupported block type":
			g.Detail += " Expected are: " + strings.Join(sortedNames(blocks), ", ") + "."
		}
	}
	d.diags = append(d.diags, diags...)
	for _, n := range sortedNames(c.Attributes) {
		a := c.Attributes[n]
		d.places[join(path, n)] = a.Expr.Range()
		v, diags := a.Expr.Value(nil)
		d.diags = append(d.diags, diags...)
		if diags.HasErrors() {
			continue
		}
		if v.IsNull() || !v.IsWhollyKnown() {
			d.errorAt(a.Expr.Range(), fmt.Sprintf("%s has no value", n), "give a value or leave it out")
			continue
		}
		fields[n](d, value{v, n, a.Expr.Range()})
	}
	seen := map[string]bool{}
	for _, nb := range c.Blocks {
		if blocks[nb.Type].once && seen[nb.Type] {
			d.errorAt(nb.DefRange, fmt.Sprintf("a second %s block", nb.Type), "keep one")
			continue
		}
		seen[nb.Type] = true
		d.places[join(path, nb.Type)] = nb.DefRange
		blocks[nb.Type].read(d, nb)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// file reads the whole file: one job block.
func (d *decoder) file(b hcl.Body) {
	d.places[""] = b.MissingItemRange()
	found := false
	d.body(b, "", nil, map[string]block{"job": {labels: 1, read: func(d *decoder, b *hcl.Block) {
		if found {
			d.errorAt(b.DefRange, "a second job in one file", "write one job a file")
			return
		}
		found = true
		d.readJob(b)
	}}})
	if !found && !d.diags.HasErrors() {
		d.errorAt(b.MissingItemRange(), "the file has no job", `begin with job "name" { … }`)
	}
}

func (d *decoder) readJob(b *hcl.Block) {
	j := d.job
	j.Name = b.Labels[0]
	d.places["name"], d.places[""] = b.LabelRanges[0], b.DefRange
	d.body(b.Body, "", map[string]field{
		"tenant":        text(&j.Tenant),
		"priority":      text(&j.Priority),
		"project":       text(&j.Project),
		"on_miss":       text(&j.OnMiss),
		"image":         func(d *decoder, v value) { j.Image = d.image(v) },
		"keep_failed":   number(&j.KeepFailed),
		"env":           mapping(&j.Env),
		"meta":          mapping(&j.Meta),
		"runtime_bound": positive(&j.RuntimeBound),
		"deadline":      func(d *decoder, v value) { j.Deadline = d.instant(v) },
	}, map[string]block{
		"input": {once: true, read: func(d *decoder, b *hcl.Block) {
			j.Input = &jobspec.Input{}
			one := ""
			d.body(b.Body, "input", map[string]field{"path": text(&one), "paths": list(&j.Input.Paths), "combine": size(&j.Input.Combine)}, nil)
			if one != "" {
				d.places["input.paths"] = d.places["input.path"]
				j.Input.Paths = append([]string{one}, j.Input.Paths...)
			}
		}},
		"output": {once: true, read: func(d *decoder, b *hcl.Block) {
			j.Output = &jobspec.Output{}
			d.body(b.Body, "output", map[string]field{"path": text(&j.Output.Path), "replication": number(&j.Output.Replication)}, nil)
		}},
		"stage": {labels: 1, read: func(d *decoder, b *hcl.Block) { d.stage(b) }},
	})
}

func (d *decoder) stage(b *hcl.Block) {
	s := jobspec.Stage{Name: b.Labels[0], Kind: jobspec.KindGroup}
	path := fmt.Sprintf("stage[%q]", s.Name)
	d.places[path], d.places[path+".name"] = b.DefRange, b.LabelRanges[0]
	d.body(b.Body, path, map[string]field{
		"kind":            text(&s.Kind),
		"command":         list(&s.Command),
		"builtin":         list(&s.Builtin),
		"tasks":           number(&s.Tasks),
		"after":           list(&s.After),
		"combiner":        boolean(&s.Combiner),
		"combine_command": list(&s.CombineCommand),
		"disk":            size(&s.Disk),
		"env":             mapping(&s.Env),
		"attempts":        number(&s.Attempts),
		"time_limit":      span(&s.TimeLimit),
		"max_parallel":    number(&s.MaxParallel),
		"exclusive":       boolean(&s.Exclusive),
	}, map[string]block{
		"resources": {once: true, read: func(d *decoder, b *hcl.Block) {
			d.body(b.Body, path+".resources", map[string]field{"cpu": cpu(&s.Resources.CPU), "memory": size(&s.Resources.Memory), "io": rate(&s.Resources.IO)}, nil)
		}},
		"file": {labels: 1, read: func(d *decoder, b *hcl.Block) {
			f := jobspec.File{Name: b.Labels[0]}
			p := fmt.Sprintf("%s.file[%q]", path, f.Name)
			d.places[p] = b.DefRange
			d.body(b.Body, p, map[string]field{"source": text(&f.Source), "mode": mode(&f.Mode)}, nil)
			s.Files = append(s.Files, f)
		}},
		"secret": {labels: 1, read: func(d *decoder, b *hcl.Block) {
			x := jobspec.Secret{Env: b.Labels[0]}
			p := fmt.Sprintf("%s.secret[%q]", path, x.Env)
			d.places[p] = b.DefRange
			d.body(b.Body, p, map[string]field{"ref": text(&x.Ref)}, nil)
			s.Secrets = append(s.Secrets, x)
		}},
	})
	d.job.Stages = append(d.job.Stages, s)
}

// image reads "kind:source"; a bare name is one of a registry.
func (d *decoder) image(v value) *jobspec.Image {
	s, ok := d.str(v)
	if !ok {
		return nil
	}
	for _, k := range []jobspec.ImageKind{jobspec.ImageOCIArchive, jobspec.ImageRegistry, jobspec.ImageRootfs} {
		if rest, ok := strings.CutPrefix(s, string(k)+":"); ok {
			return &jobspec.Image{Kind: k, Source: rest}
		}
	}
	return &jobspec.Image{Kind: jobspec.ImageRegistry, Source: s}
}

func (d *decoder) instant(v value) *time.Time {
	s, ok := d.str(v)
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d.errorAt(v.at, fmt.Sprintf("%s: %q is no time", v.name, s), "write a time with its zone such as 2026-11-21T18:00:00Z")
		return nil
	}
	t = t.UTC()
	return &t
}

func (d *decoder) str(v value) (string, bool) {
	if v.Type() != cty.String {
		d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write text in quotes")
		return "", false
	}
	return v.AsString(), true
}

func text[T ~string](to *T) field {
	return func(d *decoder, v value) {
		if s, ok := d.str(v); ok {
			*to = T(s)
		}
	}
}

func boolean(to *bool) field {
	return func(d *decoder, v value) {
		if v.Type() != cty.Bool {
			d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write true or false")
			return
		}
		*to = v.True()
	}
}

func number(to *int) field {
	return func(d *decoder, v value) {
		if v.Type() != cty.Number {
			d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write a whole number")
			return
		}
		i, acc := v.AsBigFloat().Int64()
		if acc != big.Exact || i > 1<<31 || i < -(1<<31) {
			d.errorAt(v.at, fmt.Sprintf("%s is no whole number in range", v.name), "write a whole number")
			return
		}
		*to = int(i)
	}
}

// quantity reads a number, or text in the form that parse knows.
func quantity(to *int64, parse func(string) (int64, error)) field {
	return func(d *decoder, v value) {
		var s string
		switch v.Type() {
		case cty.String:
			s = v.AsString()
		case cty.Number:
			s = v.AsBigFloat().Text('f', -1)
		default:
			d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write a quantity in quotes")
			return
		}
		n, err := parse(s)
		if err != nil {
			what, want, _ := strings.Cut(err.Error(), ": ")
			d.errorAt(v.at, what+" cannot be read", want)
			return
		}
		*to = n
	}
}

func cpu(to *int64) field  { return quantity(to, jobspec.ParseCPU) }
func size(to *int64) field { return quantity(to, jobspec.ParseSize) }
func rate(to *int64) field { return quantity(to, jobspec.ParseRate) }

func span(to *jobspec.Duration) field {
	return func(d *decoder, v value) {
		s, ok := d.str(v)
		if !ok {
			return
		}
		t, err := time.ParseDuration(s)
		if err != nil {
			d.errorAt(v.at, fmt.Sprintf("%s: %q is no span of time", v.name, s), "write a number with a unit such as 90s, 15m or 2h")
			return
		}
		*to = jobspec.Duration(t)
	}
}

// positive is a span that must be above zero.
func positive(to *jobspec.Duration) field {
	read := span(to)
	return func(d *decoder, v value) {
		n := len(d.diags)
		if read(d, v); len(d.diags) == n && *to <= 0 {
			d.errorAt(v.at, fmt.Sprintf("%s: %q is not above zero", v.name, v.AsString()), "write how long the whole job may run, such as 30m, or leave it out")
			*to = 0
		}
	}
}

func mode(to *uint32) field {
	return func(d *decoder, v value) {
		s, ok := d.str(v)
		if !ok {
			return
		}
		m, err := strconv.ParseUint(s, 8, 32)
		if err != nil {
			d.errorAt(v.at, fmt.Sprintf("mode %q cannot be read", s), `write permission bits such as "0755"`)
			return
		}
		*to = uint32(m)
	}
}

func list(to *[]string) field {
	return func(d *decoder, v value) {
		if !v.Type().IsTupleType() {
			d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), `write a list such as ["a", "b"]`)
			return
		}
		out := []string{}
		for _, e := range v.AsValueSlice() {
			if e.IsNull() || e.Type() != cty.String {
				d.errorAt(v.at, fmt.Sprintf("%s: each element must be text", v.name), `write a list such as ["a", "b"]`)
				return
			}
			out = append(out, e.AsString())
		}
		*to = out
	}
}

func mapping(to *map[string]string) field {
	return func(d *decoder, v value) {
		if !v.Type().IsObjectType() {
			d.errorAt(v.at, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), `write a map such as { NAME = "value" }`)
			return
		}
		out := map[string]string{}
		for k, e := range v.AsValueMap() {
			if e.IsNull() || e.Type() != cty.String {
				d.errorAt(v.at, fmt.Sprintf("%s: the value of %s must be text", v.name, k), "put it in quotes")
				return
			}
			out[k] = e.AsString()
		}
		*to = out
	}
}
