package hcl

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/jobspec"
)

// variableFile is a job file whose one stage has %s.
func variableFile(declared, stage string) string {
	return declared + "\njob \"j\" {\n  stage \"s\" {\n    " + stage + "\n  }\n}\n"
}

// What a variable may hold, where it may be used, and whose value counts.
func TestVariables(t *testing.T) {
	for name, c := range map[string]struct {
		declared, stage string
		given           []Given
		path, want      string
	}{
		"a default": {`variable "w" { default = "hello" }`, `command = ["echo", var.w]`, nil,
			"stages.0.command", `["echo","hello"]`},
		"a value of the command line": {`variable "w" { default = "hello" }`, `command = ["echo", var.w]`, []Given{GivenText("w", "bye, all")},
			"stages.0.command", `["echo","bye, all"]`},
		"the last one counts": {`variable "w" {}`, `command = ["echo", var.w]`, []Given{GivenText("w", "a"), GivenText("w", "b=c")},
			"stages.0.command", `["echo","b=c"]`},
		"inside a text": {`variable "day" {}`, `command = ["cat", "/logs/${var.day}/${ var.day }.gz", "$${day}"]`, []Given{GivenText("day", "${x}")},
			"stages.0.command", `["cat","/logs/${x}/${x}.gz","${day}"]`},
		"an empty text": {`variable "w" {}`, `command = ["echo", var.w]`, []Given{GivenText("w", "")},
			"stages.0.command", `["echo",""]`},
		"a number by its type":           {`variable "n" { type = number }`, `command = ["true"] tasks = var.n`, []Given{GivenText("n", "3")}, "stages.0.tasks", `3`},
		"a number by its default":        {`variable "n" { default = 2 }`, `command = ["true"] tasks = var.n * 2`, []Given{GivenText("n", "3")}, "stages.0.tasks", `6`},
		"a number where one is wanted":   {`variable "n" {}`, `command = ["true"] tasks = var.n`, []Given{GivenText("n", "3")}, "stages.0.tasks", `3`},
		"a number in a text":             {`variable "n" { default = 2 }`, `command = ["echo", "${var.n}"]`, nil, "stages.0.command", `["echo","2"]`},
		"a number and a bool as texts":   {"variable \"n\" { default = 2 }\nvariable \"b\" { default = true }", `command = ["echo", var.n, "${var.b}"] env = { A = var.n }`, nil, "stages.0", `{"name":"s","kind":"group","command":["echo","2","true"],"tasks":1,"resources":{"cpu":1000,"memory":268435456,"io":10485760},"disk":1073741824,"env":{"A":"2"},"attempts":4}`},
		"a quantity":                     {`variable "m" {}`, `command = ["true"] resources { memory = var.m }`, []Given{GivenText("m", "64MiB")}, "stages.0.resources.memory", `67108864`},
		"true where true or false is":    {`variable "x" {}`, `command = ["true"] exclusive = var.x`, []Given{GivenText("x", "true")}, "stages.0.exclusive", `true`},
		"true or false by its type":      {`variable "x" { type = bool }`, `command = ["true"] exclusive = var.x`, []Given{GivenText("x", "true")}, "stages.0.exclusive", `true`},
		"a list":                         {`variable "c" { type = list(string) }`, `command = var.c`, []Given{GivenText("c", `["echo", "a"]`)}, "stages.0.command", `["echo","a"]`},
		"a map":                          {`variable "e" { default = { A = "1" } }`, `command = ["true"] env = var.e`, []Given{GivenText("e", `{ B = "2" }`)}, "stages.0.env", `{"B":"2"}`},
		"a description, behind the job":  {"", "command = [var.c]\n}\n}\nvariable \"c\" {\n type = string\n description = \"what runs\"\n default = \"true\"\n#", nil, "stages.0.command", `["true"]`},
		"a variable nobody uses":         {`variable "c" { default = "x" }`, `command = ["true"]`, nil, "stages.0.command", `["true"]`},
		"an unused one without a number": {`variable "c" { default = true }`, `command = ["true"]`, []Given{GivenText("c", "false")}, "stages.0.command", `["true"]`},
	} {
		t.Run(name, func(t *testing.T) {
			src := variableFile(c.declared, c.stage)
			if strings.HasSuffix(c.stage, "#") {
				src = strings.TrimSuffix(src, "\n  }\n}\n") + "\n}\n"
			}
			j, err := Parse("j.hcl", []byte(src), c.given...)
			if err != nil {
				t.Fatal(err)
			}
			if got := field(t, j, c.path); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// Each mistake is told with its line, or with the flag that has it, and with what to write.
func TestVariablesThatAreWrong(t *testing.T) {
	given := func(name, text string) []Given { return []Given{GivenText(name, text)} }
	for name, c := range map[string]struct {
		declared, stage string
		given           []Given
		want            []string
	}{
		"no value":              {`variable "day" {}`, `command = ["echo", var.day]`, nil, []string{`j.hcl:1:1`, `variable "day" has no value`, `-var day=`}},
		"not declared":          {`variable "day" { default = "x" }`, `command = ["echo", var.dya]`, nil, []string{`j.hcl:4:24`, `there is no variable "dya"`, `did you mean "day"?`}},
		"none is declared":      {``, `command = ["echo", var.day]`, nil, []string{`j.hcl:4:24`, `there is no variable "day"`, `variable "day" { default = `}},
		"given, not declared":   {`variable "day" { default = "x" }`, `command = ["true"]`, given("dya", "1"), []string{`there is no variable "dya"`, `-var`, `did you mean "day"?`}},
		"given, none declared":  {``, `command = ["true"]`, given("day", "1"), []string{`there is no variable "day"`, `the file declares none`}},
		"declared twice":        {"variable \"a\" { default = \"x\" }\nvariable \"a\" { default = \"x\" }", `command = ["true"]`, nil, []string{`j.hcl:2:1`, `declared twice`}},
		"no name":               {`variable { default = "x" }`, `command = ["true"]`, nil, []string{`j.hcl:1:10`, `variable "name" { … }`}},
		"a bad name":            {`variable "a b" { default = "x" }`, `command = ["true"]`, nil, []string{`j.hcl:1:10`, `"a b" is not a valid name`}},
		"a type that is none":   {`variable "a" { type = integer }`, `command = ["true"]`, nil, []string{`j.hcl:1:23`, `number, bool, list(string) or map(string)`}},
		"no number":             {`variable "n" { type = number }`, `command = ["true"] tasks = var.n`, given("n", "many"), []string{`j.hcl:1:1`, `variable "n" is "many"`, `-var`, `number`}},
		"a number too long":     {`variable "n" { type = number }`, `command = ["true"] tasks = var.n`, given("n", "1e9999999"), []string{`j.hcl:1:1`, `number`}},
		"no list":               {`variable "c" { type = list(string) }`, `command = var.c`, given("c", "echo"), []string{`j.hcl:1:1`, `["a", "b"]`}},
		"a default of its type": {`variable "n" { type = number default = "x" }`, `command = ["true"]`, nil, []string{`j.hcl:1:1`, `variable "n" is "x"`, `number`}},
		"a default of another":  {"variable \"a\" { default = \"x\" }\nvariable \"b\" { default = var.a }", `command = ["true"]`, nil, []string{`j.hcl:2:26`, `the value itself`}},
		"an attribute":          {`variable "a" { defualt = "x" }`, `command = ["true"]`, nil, []string{`j.hcl:1:16`, `Did you mean "default"?`}},
		"a value nobody takes":  {`variable "n" {}`, `command = ["true"] tasks = var.n`, given("n", "-4"), []string{`j.hcl:4:32`, `var.n is "-4", from -var`}},
		"a time that is none":   {`variable "d" { default = "soon" }`, "command = [\"true\"] time_limit = var.d", nil, []string{`j.hcl:4:37`, `"soon" is not a duration`, `var.d is "soon" by default`}},
		"a list for a text":     {`variable "n" { default = ["a"] }`, `command = ["echo", var.n]`, nil, []string{`j.hcl:4:15`, `each element must be text`, `var.n is a list by default`}},
		"a number that is none": {`variable "n" { default = 1 }`, `command = ["echo", 3, var.n]`, nil, []string{`j.hcl:4:15`, `each element must be text`}},
		"in a label":            {`variable "n" { default = "a" }`, "command = [\"true\"]\n    file \"${var.n}\" { source = \"x\" }", nil, []string{`j.hcl:5:11`, `a name holds no variable`, `-name`}},
		"more than a variable":  {`variable "n" { default = 1 }`, `command = ["echo", "${var.n + 1}"]`, nil, []string{`j.hcl:4:25`, `${var.NAME}`, `$${`}},
		"a calculation":         {`variable "day" { default = 2026-11-29 }`, `command = ["echo", var.day]`, nil, []string{`j.hcl:1:28`, `2026-11-29 is a calculation`, `put text in quotes`}},
		"an infinite number":    {`variable "n" { type = number }`, `command = ["echo", var.n]`, given("n", "Inf"), []string{`j.hcl:1:1`, `variable "n" is "Inf"`, `number`}},
		"a division by zero":    {`variable "n" { default = 0 }`, `command = ["echo", 1 / var.n]`, nil, []string{`j.hcl:4:15`, `each element must be text`, `var.n is 0 by default`}},
		"a list inside a text":  {`variable "l" { default = ["a"] }`, `command = ["echo", "x ${var.l}"]`, nil, []string{`j.hcl:4:29`, `Only text, a number, true or false can stand inside a text`, `var.l is a list by default`}},
		"a block inside":        {`variable "n" { validation {} }`, `command = ["true"]`, nil, []string{`j.hcl:1:16`, `There are no blocks here.`}},
		"an environment":        {`variable "n" { default = 1 }`, `command = ["echo", env.HOME]`, nil, []string{`j.hcl:4:24`, `env.HOME`, `var.NAME`}},
		"inside the job":        {``, "command = [\"true\"]\n  variable \"n\" { default = 1 }", nil, []string{`j.hcl:5:3`, `beside the job`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("j.hcl", []byte(variableFile(c.declared, c.stage)), c.given...)
			if err == nil {
				t.Fatal("it is accepted")
			}
			if n := strings.Count(err.Error(), "Error: "); n != 1 {
				t.Errorf("%d problems", n)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in\n%v", want, err)
				}
			}
		})
	}
}

// A file of values has lines NAME = VALUE.
func TestReadValues(t *testing.T) {
	values, err := ReadValues("p.vars", []byte("# production\nday = \"2026-11-30\"\nn = 3\nfiles = [\n  \"a\",\n  \"b\" ]\n"))
	if err != nil {
		t.Fatal(err)
	}
	src := variableFile("variable \"day\" {}\nvariable \"n\" { default = 1 }\nvariable \"files\" { type = list(string) }", `command = ["cat", var.day] tasks = var.n after = var.files`)
	_, err = Parse("j.hcl", []byte(src), values...)
	if err == nil || !strings.Contains(err.Error(), `var.files is a list, from p.vars:4`) || strings.Contains(err.Error(), "var.day is") {
		t.Errorf("of stages that are none: %v", err)
	}
	j, err := Parse("j.hcl", []byte(strings.Replace(src, "after = var.files", "", 1)), append(values, GivenText("day", "today"))...)
	if err != nil || j.Stages[0].Tasks != 3 || j.Stages[0].Command[1] != "today" {
		t.Errorf("%+v, %v", j, err)
	}
	for src, want := range map[string]string{
		"day = var.x\n":             "p.vars:1:7",
		"day = today\n":             "put text in quotes",
		"day = \"${x}\"\n":          "p.vars:1:8",
		"day = null\n":              "has no value",
		"day = 2026-11-30\n":        "2026-11-30 is a calculation",
		"days = [\"a\", 2026-1]\n":  "2026-1 is a calculation",
		"job \"j\" {}\n":            "NAME = VALUE",
		"a = 1\na = 2\n":            "p.vars:2:1",
		"n = 1e9999999\n":           "a number is too long",
		strings.Repeat("[", 1000):   "nested too deep",
		"a = file(\"/etc/passwd\")": "no functions",
		"\x00":                      "is not text",
	} {
		if _, err := ReadValues("p.vars", []byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", src, err, want)
		}
	}
	if _, err := ReadValues("p.vars", []byte("day = today\n")); err == nil || strings.Contains(err.Error(), "var.NAME") {
		t.Errorf("a file of values has no variables, but they are named: %v", err)
	}
	if _, err := ReadValues("p.vars", make([]byte, MaxFileBytes+1)); err == nil || !strings.Contains(err.Error(), "has more") {
		t.Errorf("too much: %v", err)
	}
}

// Texts of variables that a file repeats are bounded: it could make gigabytes of them.
func TestTextOfVariablesIsBounded(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	_, err := Parse("j.hcl", []byte(variableFile(`variable "a" {}`, `command = ["echo", "`+strings.Repeat("${var.a}", 1000)+`"]`)), GivenText("a", text))
	if err == nil || !strings.Contains(err.Error(), "j.hcl:4:") || !strings.Contains(err.Error(), "too much text") {
		t.Errorf("%.500v", err)
	}
}

// A job in JSON has no variables, and does not ignore values for them.
func TestJSONHasNoVariables(t *testing.T) {
	src := []byte(`{"version":1,"name":"j","stages":[{"name":"s","command":["echo","${var.a}"]}]}`)
	j, err := Parse("j.json", src)
	if err != nil || j.Stages[0].Command[1] != "${var.a}" {
		t.Errorf("%v", err)
	}
	_, err = Parse("j.json", src, GivenText("a", "x"))
	_, unnamed := ParseUnnamed("standard input", src, GivenText("a", "x"))
	for _, err := range []error{err, unnamed} {
		if err == nil || !strings.Contains(err.Error(), "a job in JSON has no variables") {
			t.Errorf("%v", err)
		}
	}
}

// FuzzVariables: a job file with values of a file and of -var is refused, or is a valid job; and the text of -var stands in the
// job as it was given.
func FuzzVariables(f *testing.F) {
	declared := "variable \"s\" {}\nvariable \"n\" { type = number }\nvariable \"b\" { type = bool }\nvariable \"l\" { type = list(string) }\nvariable \"m\" { type = map(string) }\n"
	file := variableFile(declared, `command = ["echo", "${var.s}", var.n] tasks = var.n exclusive = var.b key_order = var.l env = var.m`)
	values := "s = \"a\"\nn = 2\nb = true\nl = []\nm = { A = \"b\" }\n"
	for _, text := range []string{"ü ${x} %{ if }\n\"", "3", "1e400", "Inf", "true", `["a", "b"]`, `{ A = "b" }`} {
		for _, name := range []string{"s", "n", "b", "l", "m"} {
			f.Add([]byte(file), []byte(values), name, text)
		}
	}
	one := variableFile(`variable "s" { type = string }`, `command = ["x"] env = { A = var.s, B = "<${var.s}>" }`)
	fuzztest.Run(f, func(t *testing.T, file, values []byte, name, text string) {
		given, err := ReadValues("f.vars", values)
		if err != nil {
			_ = err.Error()
		}
		FieldLines("f.hcl", file)
		if j, err := Parse("f.hcl", file, append(given, GivenText(name, text))...); err != nil {
			_ = err.Error()
		} else if ps := jobspec.Validate(j); len(ps) > 0 {
			t.Fatalf("a parsed job has problems: %v", ps)
		} else if b, err := jobspec.Encode(j); err != nil {
			t.Fatal(err)
		} else if _, err := Parse("f.json", b); err != nil {
			t.Fatalf("canonical JSON is refused: %v", err)
		}
		if !utf8.ValidString(text) || strings.Contains(text, "\x00") || len(text) > 1000 {
			return
		}
		j, err := Parse("f.hcl", []byte(one), GivenText("s", text))
		if err != nil {
			t.Fatal(err)
		}
		want := cty.NormalizeString(text) // as in a job file
		if got := j.Stages[0].Env; got["A"] != want || got["B"] != "<"+want+">" {
			t.Fatalf("%q became %q", text, got)
		}
	})
}
