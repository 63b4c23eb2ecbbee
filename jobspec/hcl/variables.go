package hcl

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/drover-run/drover/jobspec"
)

// Given is a value that the command line gives to a variable of a job file.
type Given struct {
	name  string
	text  string    // of -var; its type is that of the variable
	value cty.Value // of a file of values; cty.NilVal for one of -var
	from  string    // where it was given, for messages
}

// GivenText is the value of -var NAME=TEXT.
func GivenText(name, text string) Given { return Given{name: name, text: text, from: "-var"} }

// ReadValues reads a file of values for variables, which has a line NAME = VALUE for each. The error is an *Error where it is
// about a line.
func ReadValues(name string, src []byte) ([]Given, error) {
	switch {
	case len(src) > MaxFileBytes:
		return nil, fmt.Errorf("%s: a file of values has at most %s, this one has more", name, jobspec.FormatSize(MaxFileBytes))
	case bytes.IndexByte(src, 0) >= 0:
		return nil, fmt.Errorf("%s is not text in UTF-8: a file of values has lines NAME = VALUE", name)
	}
	split, diags := splitOneLineBlocks(src, name)
	if diags.HasErrors() {
		return nil, &Error{Diags: diags, src: src}
	}
	d := newDecoder(src, split)
	d.noVariables = "write the value itself"
	f, diags := hclsyntax.ParseConfig(split.text, name, hcl.InitialPos)
	var out []Given
	if !diags.HasErrors() {
		var attributes hcl.Attributes
		attributes, diags = f.Body.JustAttributes()
		for _, g := range diags {
			g.Detail = "A file of values has lines NAME = VALUE."
		}
		for _, n := range slices.Sorted(maps.Keys(attributes)) {
			if v, ok := d.evaluate(attributes[n]); ok {
				out = append(out, Given{name: n, value: v, from: fmt.Sprintf("%s:%d", name, d.at.originalRange(attributes[n].NameRange).Start.Line)})
			}
		}
	}
	d.diags = append(d.diags, diags...)
	return out, d.finish(src)
}

// variable is one that the file declares.
type variable struct {
	header hcl.Range
	kind   string    // of variableKinds; "" if the file does not say
	value  cty.Value // unknown until it is assigned, and where its value is wrong
	from   string    // where the value is from, for messages
	typed  bool      // by its type or its default, so that a text remains one
}

// variableKinds are the types of variables: those of the attributes of a job file.
var variableKinds = []string{"string", "number", "bool", "list(string)", "map(string)"}

// declare reads a block variable "NAME".
func (d *decoder) declare(b *hcl.Block) {
	name := b.Labels[0]
	if name == "" && d.unread[`variable[""]`] {
		return // its label is missing, which was said
	}
	if !hclsyntax.ValidIdentifier(name) {
		d.addError(b.LabelRanges[0], fmt.Sprintf("%q is not a valid name", name), "use letters, digits, '_' or '-', a letter first")
		return
	}
	if d.variables[name] != nil {
		d.addError(b.DefRange, fmt.Sprintf("variable %q is declared twice", name), "keep one")
		return
	}
	v := &variable{header: b.DefRange, value: cty.DynamicVal}
	d.variables[name] = v
	before := len(d.diags)
	typed, rest, _ := b.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "type"}}}) // readBody would evaluate it
	if a := typed.Attributes["type"]; a != nil {
		v.kind, v.typed = d.variableKind(a.Expr), true
	}
	var given cty.Value
	var description string
	d.noVariables = "write the value itself"
	d.readBody(rest, fmt.Sprintf("variable[%q]", name), map[string]attrReader{
		"type":        nil, // read already: here for the names that are expected
		"description": textAttr(&description),
		"default":     func(_ *decoder, a attrValue) { given = a.Value },
	}, nil)
	d.noVariables = ""
	if len(d.diags) > before {
		v.from = "nowhere" // so that it is not said to have no value
		return
	}
	if given == cty.NilVal {
		return
	}
	v.typed, v.kind = true, cmp.Or(v.kind, kindOf(given))
	d.assign(name, v, Given{value: given, from: "its default"})
}

// variableKind returns the kind that the expression of a type names, "" if there is none such.
func (d *decoder) variableKind(e hcl.Expression) string {
	r := d.at.originalRange(e.Range())
	kind := strings.Join(strings.Fields(string(d.at.src[r.Start.Byte:r.End.Byte])), "")
	if !slices.Contains(variableKinds, kind) {
		d.addError(e.Range(), fmt.Sprintf("%s is no type of a variable", kind), "write string, number, bool, list(string) or map(string), without quotes")
		return ""
	}
	return kind
}

// kindOf returns the kind of a value, "" for one that no attribute takes.
func kindOf(v cty.Value) string {
	for _, kind := range variableKinds {
		if c, ok := ofKind(v, kind); ok && c.Type().Equals(v.Type()) {
			return kind
		}
	}
	return ""
}

// ofKind returns a value as one of a kind.
func ofKind(v cty.Value, kind string) (cty.Value, bool) {
	to, isPrimitive := map[string]cty.Type{"string": cty.String, "number": cty.Number, "bool": cty.Bool}[kind]
	switch t := v.Type(); {
	case kind == "":
		return v, true
	case isPrimitive && t == cty.String && to == cty.Number && !isShortNumber(v.AsString()):
		return v, false
	case isPrimitive:
		c, err := convert.Convert(v, to)
		return c, err == nil && t.IsPrimitiveType() && !isInfinite(c)
	case kind == "list(string)" && !t.IsTupleType(), kind == "map(string)" && !t.IsObjectType():
		return v, false
	}
	for it := v.ElementIterator(); it.Next(); {
		if _, e := it.Element(); e.Type() != cty.String || e.IsNull() {
			return v, false
		}
	}
	return v, true
}

// isInfinite reports whether a value is an infinite number: the library reads "Inf" as one, and divides by zero.
func isInfinite(v cty.Value) bool {
	return v.Type() == cty.Number && v.IsKnown() && !v.IsNull() && v.AsBigFloat().IsInf()
}

// assignAll gives the variables their values. Of several for one name the last counts.
func (d *decoder) assignAll(given []Given) {
	for _, g := range given {
		v := d.variables[g.name]
		if v == nil {
			declared := slices.Sorted(maps.Keys(d.variables))
			hint := "the file declares none"
			if near := jobspec.Suggest(g.name, declared); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			} else if len(declared) > 0 {
				hint = "the file declares " + strings.Join(declared, ", ")
			}
			d.diags = append(d.diags, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("there is no variable %q, for which %s has a value", g.name, g.from), Detail: hint})
			continue
		}
		d.assign(g.name, v, g)
	}
	for _, name := range slices.Sorted(maps.Keys(d.variables)) {
		if v := d.variables[name]; v.from == "" {
			d.addError(v.header, fmt.Sprintf("variable %q has no value", name), fmt.Sprintf("give one with -var %s=…, with -var-file, or as default of the variable", name))
		}
	}
	values := map[string]cty.Value{}
	for name, v := range d.variables {
		values[name] = v.value
	}
	d.context = &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.ObjectVal(values)}}
}

// assign gives a variable a value, which must be of its kind.
func (d *decoder) assign(name string, v *variable, g Given) {
	value := g.value
	if value == cty.NilVal {
		value = cty.StringVal(g.text)
		if v.kind == "list(string)" || v.kind == "map(string)" {
			value = parseValue(g.text)
		}
	}
	c, ok := ofKind(value, v.kind)
	v.value, v.from = c, g.from
	if ok {
		return
	}
	v.value = cty.DynamicVal
	shown := valueText(value)
	if g.value == cty.NilVal {
		shown = fmt.Sprintf("%q", clipped(g.text))
	}
	d.addError(v.header, fmt.Sprintf("variable %q is %s, from %s", name, shown, g.from), map[string]string{
		"string": "its type is string: write text in quotes", "number": "its type is number: write one such as 3 or 0.5", "bool": "its type is bool: write true or false",
		"list(string)": `its type is list(string): write ["a", "b"], and in a shell '["a", "b"]'`, "map(string)": `its type is map(string): write { NAME = "value" }, and in a shell '{ NAME = "value" }'`,
	}[v.kind])
}

// parseValue returns the value of an expression without variables, unknown if it has none.
func parseValue(text string) cty.Value {
	const name = "-var"
	if split, diags := splitOneLineBlocks([]byte("value = "+text+"\n"), name); diags.HasErrors() || len(split.values) > 0 {
		return cty.DynamicVal // too deep, or with templates
	}
	e, diags := hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
	if diags.HasErrors() {
		return cty.DynamicVal
	}
	v, diags := e.Value(nil)
	if diags.HasErrors() || v.IsNull() || !v.IsWhollyKnown() {
		return cty.DynamicVal
	}
	return v
}

// evaluate returns the value of an attribute, or adds why it has none.
func (d *decoder) evaluate(a *hcl.Attribute) (v cty.Value, ok bool) {
	if d.hasValue(d.at.originalRange(a.Expr.Range())) || !d.checkVariables(a.Expr) || d.noVariables != "" && !d.checkLiteral(a.Expr) {
		return v, false
	}
	v, diags := a.Expr.Value(d.context)
	for _, g := range diags {
		cureExpression(g, d.uses[a.Expr.Range()])
	}
	d.diags = append(d.diags, diags...)
	switch {
	case diags.HasErrors():
		return v, false
	case v.IsNull(), !v.IsWhollyKnown() && len(a.Expr.Variables()) == 0:
		d.addError(a.Expr.Range(), fmt.Sprintf("%s has no value", a.Name), "give a value or leave it out")
		return v, false
	}
	return v, v.IsWhollyKnown() // otherwise that of a variable is wrong, which was said
}

// checkLiteral reports whether the value of a variable is written out, and adds the calculation that it is otherwise: a day
// without quotes, such as 2026-11-29, would be the number 1986.
func (d *decoder) checkLiteral(e hcl.Expression) bool {
	before := len(d.diags)
	_ = hclsyntax.VisitAll(e.(hclsyntax.Expression), func(n hclsyntax.Node) hcl.Diagnostics {
		if _, ok := n.(*hclsyntax.BinaryOpExpr); ok && len(d.diags) == before {
			r := d.at.originalRange(n.Range())
			d.addError(n.Range(), clipped(string(d.at.src[r.Start.Byte:r.End.Byte]))+" is a calculation", "put text in quotes, or write the number itself")
		}
		return nil
	})
	return len(d.diags) == before
}

// checkVariables reports whether an expression has no other variables than the file declares, and adds what is wrong. It
// notes what they are, for messages about the value.
func (d *decoder) checkVariables(e hcl.Expression) bool {
	before := len(d.diags)
	var names []string
	for _, t := range e.Variables() {
		r := t.SourceRange()
		original := d.at.originalRange(r)
		name := ""
		if len(t) > 1 && t.RootName() == "var" {
			if a, ok := t[1].(hcl.TraverseAttr); ok {
				name = a.Name
			}
		}
		switch v := d.variables[name]; {
		case name == "" && d.noVariables != "":
			d.addError(r, clipped(string(d.at.src[original.Start.Byte:original.End.Byte]))+" is no value", "put text in quotes")
		case name == "":
			d.addError(r, fmt.Sprintf("%s is neither a value nor a variable", clipped(string(d.at.src[original.Start.Byte:original.End.Byte]))),
				"put text in quotes; a variable that the file declares is var.NAME; for a ${NAME} that the task's shell is to read write $${NAME} in the text")
		case d.noVariables != "":
			d.addError(r, "there are no variables here", d.noVariables)
		case v == nil:
			hint := fmt.Sprintf(`declare it beside the job: variable %q { default = "…" }`, name)
			if near := jobspec.Suggest(name, slices.Sorted(maps.Keys(d.variables))); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			d.addError(r, fmt.Sprintf("there is no variable %q", name), hint)
		default:
			names = append(names, name)
			d.expanded += textBytes(v.value)
		}
	}
	if d.expanded > MaxFileBytes {
		d.addError(e.Range(), "too much text of variables", fmt.Sprintf("a job file may have %s of it: put data into files of a stage, or into the input", jobspec.FormatSize(MaxFileBytes)))
		d.expanded = 0 // said once
	}
	if len(d.diags) > before {
		return false
	}
	slices.Sort(names)
	var uses []string
	for _, n := range slices.Compact(names) {
		where := ", from " + d.variables[n].from
		if d.variables[n].from == "its default" {
			where = " by default"
		}
		uses = append(uses, fmt.Sprintf("var.%s is %s%s", n, valueText(d.variables[n].value), where))
	}
	if len(uses) > 0 {
		d.uses[e.Range()] = strings.Join(uses, "; ")
	}
	return true
}

// textBytes returns how many bytes of text a value has.
func textBytes(v cty.Value) (n int) {
	switch t := v.Type(); {
	case !v.IsWhollyKnown() || v.IsNull():
	case t == cty.String:
		n = len(v.AsString())
	case t.IsTupleType(), t.IsObjectType():
		for it := v.ElementIterator(); it.Next(); {
			_, e := it.Element()
			n += textBytes(e)
		}
	}
	return n
}

// valueText shows a value in a message.
func valueText(v cty.Value) string {
	switch t := v.Type(); {
	case !v.IsWhollyKnown() || v.IsNull():
		return "nothing"
	case t == cty.String:
		return fmt.Sprintf("%q", clipped(v.AsString()))
	case t == cty.Number:
		return v.AsBigFloat().Text('g', -1)
	case t == cty.Bool:
		return fmt.Sprint(v.True())
	case t.IsTupleType():
		return "a list"
	default:
		return "a map"
	}
}

// maxShownText bounds the characters of a value in a message.
const maxShownText = 60

func clipped(text string) string {
	if letters := []rune(text); len(letters) > maxShownText {
		return string(letters[:maxShownText]) + "…"
	}
	return text
}

// as returns the value as one of another type, if it is a text that -var gave to a variable without a type: a job file that
// leaves out the type of a number need not repeat it.
func (v attrValue) as(t cty.Type) attrValue {
	if v.untyped && v.Type() == cty.String {
		kind := map[cty.Type]string{cty.Number: "number", cty.Bool: "bool"}[t]
		if c, ok := ofKind(v.Value, kind); ok {
			v.Value = c
		}
	}
	return v
}

// asText returns what a variable's number or bool is as a text, and any other value as it is. A number that is written where a
// text belongs remains one: it may be meant for another place.
func asText(v cty.Value, e hcl.Expression) cty.Value {
	if e == nil || len(e.Variables()) == 0 || v.IsNull() || !v.Type().IsPrimitiveType() || isInfinite(v) {
		return v
	}
	if c, err := convert.Convert(v, cty.String); err == nil {
		return c
	}
	return v
}

// isUntyped reports whether an expression is one variable that has neither a type nor a default.
func (d *decoder) isUntyped(e hcl.Expression) bool {
	t, diags := hcl.AbsTraversalForExpr(e)
	if diags.HasErrors() || len(t) != 2 {
		return false
	}
	a, ok := t[1].(hcl.TraverseAttr)
	return ok && d.variables[a.Name] != nil && !d.variables[a.Name].typed
}

// noValuesInJSON refuses values for a job in JSON.
func noValuesInJSON(name string, given []Given) error {
	if len(given) == 0 {
		return nil
	}
	return errors.New(name + ": a job in JSON has no variables: leave out -var and -var-file, or write the job file in HCL")
}
