package hcl

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/drover-run/drover/jobspec"
)

// decoder walks the body of a job file, fills in the job, and records the source
// range of each field under the path that jobspec.Problem uses.
type decoder struct {
	job    *jobspec.Job
	found  bool // the file has a job
	diags  hcl.Diagnostics
	ranges map[string]hcl.Range
	at     *positionMap
	values hcl.Diagnostics // of splitText

	variables   map[string]*variable // that the file declares
	context     *hcl.EvalContext     // of their values; nil while they are read
	noVariables string               // what to write where there are none; "" where there may be
	uses        map[hcl.Range]string // what the variables in an expression are, for messages about it
	expanded    int                  // bytes of text of variables so far
	unreadFields
}

func newDecoder(src []byte, split splitText) *decoder {
	return &decoder{
		job:          &jobspec.Job{Version: jobspec.Version, KeepFailed: jobspec.DefaultKeepFailed},
		ranges:       map[string]hcl.Range{},
		at:           newPositionMap(src, split.breaks),
		values:       split.values,
		variables:    map[string]*variable{},
		uses:         map[hcl.Range]string{},
		unreadFields: newUnreadFields(),
	}
}

// hasValue reports whether a range of the file has one of the values that a job file cannot have.
func (d *decoder) hasValue(r hcl.Range) bool {
	i, _ := slices.BinarySearchFunc(d.values, r.Start.Byte, func(g *hcl.Diagnostic, at int) int { return cmp.Compare(g.Subject.Start.Byte, at) })
	return i < len(d.values) && d.values[i].Subject.Start.Byte < r.End.Byte
}

// attrReader reads one attribute into the job.
type attrReader func(d *decoder, v attrValue)

// attrValue is the evaluated expression of an attribute with its source range.
type attrValue struct {
	cty.Value
	name       string
	valueRange hcl.Range
	expr       hcl.Expression
	untyped    bool // a variable without a type: see as
}

// blockSpec reads one nested block.
type blockSpec struct {
	labels int
	once   bool
	read   func(d *decoder, b *hcl.Block)
}

// readBody reads the attributes and blocks of one body. HCL reports unknown names,
// and readBody says what to write instead.
func (d *decoder) readBody(b hcl.Body, path string, fields map[string]attrReader, blocks map[string]blockSpec) {
	schema := &hcl.BodySchema{}
	for _, n := range slices.Sorted(maps.Keys(fields)) {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: n})
	}
	for _, n := range slices.Sorted(maps.Keys(blocks)) {
		labels := []string{"name", "second name"}[:blocks[n].labels]
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: n, LabelNames: labels})
	}
	c, diags := b.Content(schema)
	for _, g := range diags {
		if m, unknown := cureUnknown(g, fields, blocks); unknown {
			d.addUnknown(path, m, blocks)
		}
		cureLabels(g, schema)
	}
	d.diags = append(d.diags, diags...)
	for _, n := range slices.Sorted(maps.Keys(c.Attributes)) {
		a := c.Attributes[n]
		d.ranges[joinPath(path, n)] = a.Expr.Range()
		if list, diags := hcl.ExprList(a.Expr); !diags.HasErrors() {
			for i, e := range list {
				d.ranges[fmt.Sprintf("%s[%d]", joinPath(path, n), i)] = e.Range()
			}
		}
		d.unread[joinPath(path, n)] = true
		v, ok := d.evaluate(a)
		if !ok {
			continue
		}
		before := len(d.diags)
		fields[n](d, attrValue{v, n, a.Expr.Range(), a.Expr, d.isUntyped(a.Expr)})
		d.unread[joinPath(path, n)] = len(d.diags) > before
	}
	seen := map[string]bool{}
	for _, nb := range append(c.Blocks, d.mislabelled(b, path, blocks)...) {
		if blocks[nb.Type].once && seen[nb.Type] {
			d.addError(nb.DefRange, fmt.Sprintf("duplicate %s block", nb.Type), "keep one")
			continue
		}
		seen[nb.Type] = true
		d.ranges[joinPath(path, nb.Type)] = nb.DefRange
		blocks[nb.Type].read(d, nb)
	}
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// readFile reads the file's variables, to which given gives values, and then its single job block.
func (d *decoder) readFile(b hcl.Body, given []Given) {
	d.ranges[""] = b.MissingItemRange()
	var job *hcl.Block
	d.readBody(b, "", nil, map[string]blockSpec{
		"variable": {labels: 1, read: func(d *decoder, b *hcl.Block) { d.declare(b) }},
		"job": {labels: 1, read: func(d *decoder, b *hcl.Block) {
			if job != nil {
				d.addError(b.DefRange, "more than one job in the file", "write one job per file")
				return
			}
			job = b
		}},
	})
	d.assignAll(given)
	if d.found = job != nil; d.found {
		d.readJob(job)
	} else if !d.diags.HasErrors() {
		d.addError(b.MissingItemRange(), "the file has no job", `begin with job "name" { … }`)
	}
}

func (d *decoder) readJob(b *hcl.Block) {
	j := d.job
	j.Name = b.Labels[0]
	d.ranges["name"], d.ranges[""] = b.LabelRanges[0], b.DefRange
	d.readBody(b.Body, "", map[string]attrReader{
		"tenant":        textAttr(&j.Tenant),
		"priority":      textAttr(&j.Priority),
		"project":       textAttr(&j.Project),
		"on_miss":       textAttr(&j.OnMiss),
		"image":         func(d *decoder, v attrValue) { j.Image = d.parseImage(v) },
		"gather_logs":   textAttr(&j.GatherLogs),
		"keep_failed":   intAttr(&j.KeepFailed),
		"env":           mapAttr(&j.Env),
		"meta":          mapAttr(&j.Meta),
		"runtime_bound": positiveDurationAttr(&j.RuntimeBound),
		"deadline":      func(d *decoder, v attrValue) { j.Deadline = d.parseTime(v) },
	}, map[string]blockSpec{
		"input": {once: true, read: func(d *decoder, b *hcl.Block) {
			j.Input = &jobspec.Input{}
			one := ""
			d.readBody(b.Body, "input", map[string]attrReader{"path": textAttr(&one), "paths": listAttr(&j.Input.Paths), "combine": sizeAttr(&j.Input.CombineBytes), "recurse": boolAttr(&j.Input.Recurse)}, nil)
			if len(j.Input.Paths) == 0 {
				d.alsoUnread("input.path", "input.paths")
			}
			if one != "" {
				d.ranges["input.paths"] = d.ranges["input.path"]
				for i := len(j.Input.Paths); i > 0; i-- {
					d.ranges[fmt.Sprintf("input.paths[%d]", i)] = d.ranges[fmt.Sprintf("input.paths[%d]", i-1)]
				}
				d.ranges["input.paths[0]"] = d.ranges["input.path"]
				j.Input.Paths = append([]string{one}, j.Input.Paths...)
			}
		}},
		"output": {once: true, read: func(d *decoder, b *hcl.Block) {
			j.Output = &jobspec.Output{}
			d.readBody(b.Body, "output", map[string]attrReader{"path": textAttr(&j.Output.Path), "replication": intAttr(&j.Output.Replication)}, nil)
		}},
		"stage": {labels: 1, read: func(d *decoder, b *hcl.Block) { d.readStage(b) }},
	})
}

func (d *decoder) readStage(b *hcl.Block) {
	s := jobspec.Stage{Name: b.Labels[0], Kind: jobspec.KindGroup}
	path := fmt.Sprintf("stage[%q]", s.Name)
	d.ranges[path], d.ranges[path+".name"] = b.DefRange, b.LabelRanges[0]
	d.readBody(b.Body, path, map[string]attrReader{
		"kind":            textAttr(&s.Kind),
		"command":         listAttr(&s.Command),
		"builtin":         listAttr(&s.Builtin),
		"tasks":           nonZeroAttr(intAttr(&s.Tasks), &s.Tasks),
		"after":           listAttr(&s.After),
		"combiner":        boolAttr(&s.Combiner),
		"combine_command": listAttr(&s.CombineCommand),
		"disk":            nonZeroAttr(sizeAttr(&s.Disk), &s.Disk),
		"env":             mapAttr(&s.Env),
		"attempts":        nonZeroAttr(intAttr(&s.Attempts), &s.Attempts),
		"time_limit":      nonZeroAttr(durationAttr(&s.TimeLimit), &s.TimeLimit),
		"max_parallel":    intAttr(&s.MaxParallel),
		"slow_start":      nonZeroAttr(fractionAttr(&s.SlowStart), &s.SlowStart),
		"exclusive":       boolAttr(&s.Exclusive),

		"key_fields":       nonZeroAttr(intAttr(&s.KeyFields), &s.KeyFields),
		"key_order":        listAttr(&s.KeyOrder),
		"partition_fields": nonZeroAttr(intAttr(&s.PartitionFields), &s.PartitionFields),
		"partition_keys":   listAttr(&s.PartitionKeys),
		"partition_file":   textAttr(&s.PartitionFile),

		"compress_map_output":   textAttr(&s.CompressMapOutput),
		"containers_used_again": optionalBoolAttr(&s.ContainersUsedAgain),
	}, map[string]blockSpec{
		"resources": {once: true, read: func(d *decoder, b *hcl.Block) {
			d.readBody(b.Body, path+".resources", map[string]attrReader{
				"cpu":    nonZeroAttr(cpuAttr(&s.Resources.CPU), &s.Resources.CPU),
				"memory": nonZeroAttr(sizeAttr(&s.Resources.Memory), &s.Resources.Memory),
				"io":     nonZeroAttr(rateAttr(&s.Resources.IO), &s.Resources.IO),
			}, nil)
		}},
		"file": {labels: 1, read: func(d *decoder, b *hcl.Block) {
			f := jobspec.File{Name: b.Labels[0]}
			p := fmt.Sprintf("%s.file[%q]", path, f.Name)
			d.ranges[p] = b.DefRange
			d.readBody(b.Body, p, map[string]attrReader{"source": textAttr(&f.Source), "mode": nonZeroAttr(modeAttr(&f.Mode), &f.Mode)}, nil)
			s.Files = append(s.Files, f)
		}},
		"secret": {labels: 1, read: func(d *decoder, b *hcl.Block) {
			x := jobspec.Secret{Env: b.Labels[0]}
			p := fmt.Sprintf("%s.secret[%q]", path, x.Env)
			d.ranges[p] = b.DefRange
			d.readBody(b.Body, p, map[string]attrReader{"ref": textAttr(&x.Ref), "secret": func(d *decoder, v attrValue) {
				if name, ok := d.stringValue(v, `write the name of a secret in quotes, such as "db" or "db@3"`); ok {
					x.Ref = jobspec.StoredSecret(name)
				}
			}}, nil)
			d.alsoUnread(p+".secret", p+".ref")
			s.Secrets = append(s.Secrets, x)
		}},
	})
	d.job.Stages = append(d.job.Stages, s)
}

// parseImage parses "kind:source"; a source without kind is a registry name.
func (d *decoder) parseImage(v attrValue) *jobspec.Image {
	s, ok := d.stringValue(v, `write for example "oci-archive:python.tar"`)
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

func (d *decoder) parseTime(v attrValue) *time.Time {
	const want = "write a time with its zone such as 2026-11-21T18:00:00Z"
	s, ok := d.stringValue(v, want+", in quotes")
	if !ok {
		return nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d.addError(v.valueRange, fmt.Sprintf("%s: %q is not a time", v.name, s), want)
		return nil
	}
	t = t.UTC()
	return &t
}

// stringValue returns text that is not empty: an empty one would count as left out,
// and a tenant that a template has not filled in would become the default.
func (d *decoder) stringValue(v attrValue, want string) (string, bool) {
	v.Value = asText(v.Value, v.expr)
	if v.Type() != cty.String {
		d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), want)
		return "", false
	}
	if v.AsString() == "" {
		d.addError(v.valueRange, v.name+" is empty", "give a value or leave it out")
		return "", false
	}
	return v.AsString(), true
}

func textAttr[T ~string](to *T) attrReader {
	return func(d *decoder, v attrValue) {
		if s, ok := d.stringValue(v, "write text in quotes"); ok {
			*to = T(s)
		}
	}
}

func boolAttr(to *bool) attrReader {
	return func(d *decoder, v attrValue) {
		v = v.as(cty.Bool)
		if v.Type() != cty.Bool {
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write true or false, without quotes")
			return
		}
		*to = v.True()
	}
}

// optionalBoolAttr is boolAttr for an attribute for which absent and false differ.
func optionalBoolAttr(to **bool) attrReader {
	return func(d *decoder, v attrValue) {
		*to = new(bool)
		boolAttr(*to)(d, v)
	}
}

func intAttr(to *int) attrReader {
	return func(d *decoder, v attrValue) {
		v = v.as(cty.Number)
		if v.Type() != cty.Number {
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write a whole number, without quotes")
			return
		}
		n := v.AsBigFloat()
		if !n.IsInt() {
			d.addError(v.valueRange, v.name+" is no whole number", "write a whole number")
			return
		}
		i, acc := n.Int64()
		if acc != big.Exact || i > 1<<31 || i < -(1<<31) {
			d.addError(v.valueRange, v.name+" is out of range", "write a smaller number")
			return
		}
		*to = int(i)
	}
}

func fractionAttr(to *float64) attrReader {
	return func(d *decoder, v attrValue) {
		v = v.as(cty.Number)
		if v.Type() != cty.Number {
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write a number such as 0.8, without quotes")
			return
		}
		*to, _ = v.AsBigFloat().Float64()
	}
}

// quantityAttr reads a number, or a string in the format of parse.
func quantityAttr(to *int64, parse func(string) (int64, error)) attrReader {
	return func(d *decoder, v attrValue) {
		var s string
		switch v.Type() {
		case cty.String:
			s = v.AsString()
		case cty.Number:
			s = v.AsBigFloat().Text('f', -1)
		default:
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), "write a quantity in quotes")
			return
		}
		n, err := parse(s)
		if err != nil {
			what, want, _ := strings.Cut(err.Error(), ": ")
			d.addError(v.valueRange, what+" cannot be read", want)
			return
		}
		*to = n
	}
}

func cpuAttr(to *int64) attrReader  { return quantityAttr(to, jobspec.ParseCPU) }
func sizeAttr(to *int64) attrReader { return quantityAttr(to, jobspec.ParseSize) }
func rateAttr(to *int64) attrReader { return quantityAttr(to, jobspec.ParseRate) }

func durationAttr(to *jobspec.Duration) attrReader {
	return func(d *decoder, v attrValue) {
		const want = "write a number with a unit such as 90s, 15m or 2h"
		s, ok := d.stringValue(v, want+", in quotes")
		if !ok {
			return
		}
		t, err := time.ParseDuration(s)
		if err != nil {
			d.addError(v.valueRange, fmt.Sprintf("%s: %q is not a duration", v.name, s), want)
			return
		}
		*to = jobspec.Duration(t)
	}
}

// positiveDurationAttr reads a duration that must be above zero.
func positiveDurationAttr(to *jobspec.Duration) attrReader {
	read := durationAttr(to)
	return func(d *decoder, v attrValue) {
		n := len(d.diags)
		if read(d, v); len(d.diags) == n && *to <= 0 {
			d.addError(v.valueRange, fmt.Sprintf("%s: %q is not above zero", v.name, v.AsString()), "write how long the whole job may run, such as 30m, or leave it out")
			*to = 0
		}
	}
}

func modeAttr(to *uint32) attrReader {
	return func(d *decoder, v attrValue) {
		const want = `write permission bits in quotes, such as "0755"`
		s, ok := d.stringValue(v, want)
		if !ok {
			return
		}
		m, err := strconv.ParseUint(s, 8, 32)
		if err != nil {
			d.addError(v.valueRange, fmt.Sprintf("mode %q cannot be read", s), want)
			return
		}
		*to = uint32(m)
	}
}

func listAttr(to *[]string) attrReader {
	return func(d *decoder, v attrValue) {
		if !v.Type().IsTupleType() {
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), `write a list such as ["a", "b"]`)
			return
		}
		out := []string{}
		written, _ := hcl.ExprList(v.expr)
		for i, e := range v.AsValueSlice() {
			if i < len(written) {
				e = asText(e, written[i])
			}
			if e.IsNull() || e.Type() != cty.String {
				d.addError(v.valueRange, fmt.Sprintf("%s: each element must be text", v.name), `write a list such as ["a", "b"]`)
				return
			}
			out = append(out, e.AsString())
		}
		*to = out
	}
}

func mapAttr(to *map[string]string) attrReader {
	return func(d *decoder, v attrValue) {
		if !v.Type().IsObjectType() {
			d.addError(v.valueRange, fmt.Sprintf("%s is %s", v.name, v.Type().FriendlyName()), `write a map such as { NAME = "value" }`)
			return
		}
		d.checkKeysOnce(v)
		out := map[string]string{}
		values := v.AsValueMap()
		written := map[string]hcl.Expression{}
		pairs, _ := hcl.ExprMap(v.expr)
		for _, pair := range pairs {
			if k, diags := pair.Key.Value(d.context); !diags.HasErrors() && k.Type() == cty.String && !k.IsNull() && k.IsKnown() {
				written[k.AsString()] = pair.Value
			}
		}
		for _, k := range slices.Sorted(maps.Keys(values)) {
			e := asText(values[k], written[k])
			if e.IsNull() || e.Type() != cty.String {
				d.addError(v.valueRange, fmt.Sprintf("%s: the value of %s must be text", v.name, k), "put it in quotes")
				return
			}
			out[k] = e.AsString()
		}
		*to = out
	}
}

// checkKeysOnce reports keys that stand in a map twice: its value has the last of them.
func (d *decoder) checkKeysOnce(v attrValue) {
	pairs, diags := hcl.ExprMap(v.expr)
	if diags.HasErrors() {
		return
	}
	seen := map[string]bool{}
	for _, pair := range pairs {
		key, diags := pair.Key.Value(d.context)
		if diags.HasErrors() || key.IsNull() || !key.IsKnown() || key.Type() != cty.String {
			continue
		}
		if k := key.AsString(); seen[k] {
			d.addError(pair.Key.Range(), fmt.Sprintf("%s: %s stands there twice", v.name, k), "keep one")
		} else {
			seen[k] = true
		}
	}
}
