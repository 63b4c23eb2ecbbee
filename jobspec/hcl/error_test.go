package hcl

import (
	"runtime"
	"strings"
	"testing"
)

// TestErrorIsBounded: what is written of a file with many problems, many lines or one long line is
// short, and costs little memory beside the parser's own.
func TestErrorIsBounded(t *testing.T) {
	const size = 256 << 10
	for name, src := range map[string]string{
		"many lines":         "job \"j\" {\n" + strings.Repeat("\n", size) + "  priority = \"hihg\"\n}\n",
		"many problems":      "job \"j\" {\n" + strings.Repeat("  a = 1\n", size/8) + "}\n",
		"a block of lines":   "job \"j\" {\n  stage \"a\" {\n" + strings.Repeat("  x\n", size/4),
		"a long line":        "job \"j\" { name = \"" + strings.Repeat("x", size) + "\" }\n",
		"a long line's end":  "job \"j\" { /*" + strings.Repeat("x", size) + "*/ nam = 1 }\n",
		"an end of the file": "job \"j\" {" + strings.Repeat("\n", size),
		"no text":            "",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("f.hcl", []byte(src))
			if err == nil {
				t.Fatal("no error")
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			text := err.Error()
			runtime.ReadMemStats(&after)
			if len(text) > 64<<10 {
				t.Errorf("%d bytes are written", len(text))
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 {
				t.Errorf("%d KiB were allocated", used>>10)
			}
		})
	}
}

func TestErrorShowsTheMarkedPartOfALongLine(t *testing.T) {
	_, err := Parse("f.hcl", []byte("job \"j\" {\n  /*"+strings.Repeat("x", 1000)+"*/ nam = 1 # "+strings.Repeat("y", 1000)+"\n}\n"))
	if err == nil || !strings.Contains(err.Error(), "   2: ...xxx") || !strings.Contains(err.Error(), "*/ nam = 1 # yyy") || !strings.Contains(err.Error(), "yyy...\n") {
		t.Errorf("got: %v", err)
	}
}

// A problem is shown with its line and its column in characters, which a terminal or an editor makes a link of.
func TestErrorShowsTheColumn(t *testing.T) {
	_, err := Parse("f.hcl", []byte("job \"j\" {\n  /* üü */ stage \"s\" { command = [\"true\"] resources { cpu = \"ä\" memory = 5x } }\n}\n"))
	for _, want := range []string{"  on f.hcl:2:61:\n", "  on f.hcl:2:74:\n"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// What belongs to a shell or a program is not taken for a template of HCL, which would replace ${1} by 1.
func TestTemplatesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"echo ${HOME}": "write $${", "echo ${1}": "write $${", "echo ${X:-5}": "write $${", "echo ${#X}": "write $${", "a=${f%.txt}": "write $${", "${": "write $${",
		"curl -w %{http_code}": "write %%{", "%{ if true }": "write %%{", "${1e9999999}": "write $${",
	} {
		for _, value := range []string{`"` + text + `"`, "<<END\n" + text + "\nEND\n"} {
			_, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"sh\", \"-c\", "+value+"]\n  }\n}\n"))
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "Error: ") != 1 {
				t.Errorf("%s: %v, want one problem with %q", value, err, want)
			}
		}
	}
	j, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"echo\", \"$HOME $(date) $${HOME} %%{code} 5% $\"]\n  }\n}\n"))
	if err != nil || j.Stages[0].Command[1] != "$HOME $(date) ${HOME} %{code} 5% $" {
		t.Errorf("%v, %v", j, err)
	}
}

// A quantity without quotes, as Nomad and Kubernetes have it in other places, is named as such: the parser alone says
// "Missing newline after argument".
func TestUnitsWantQuotes(t *testing.T) {
	for quantity, attribute := range map[string]string{"100m": "resources { cpu = 100m }", "256MiB": "resources { memory = 256MiB }", "1.5GB": "disk = 1.5GB", "2h30m": "time_limit = 2h30m"} {
		_, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"true\"]\n    "+attribute+"\n  }\n}\n"))
		want := "write a quantity with a unit in quotes: \"" + quantity + "\""
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "f.hcl:4:") {
			t.Errorf("%s: %v, want %q in line 4", attribute, err, want)
		}
	}
}

// A number that would take minutes to write as text is refused, as are products that make such numbers.
func TestNumbersAreBounded(t *testing.T) {
	for value, want := range map[string]string{
		"1e9999999": "a number is too long", "1E-9999999": "a number is too long", "1e99999999999999999999": "a number is too long",
		strings.Repeat("9", maxNumberBytes+1):        "a number is too long",
		"1" + strings.Repeat("*1e18", maxProducts+1): "too many products", "1" + strings.Repeat("/1e18", maxProducts+1): "too many products",
	} {
		_, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"true\"]\n    resources { cpu = "+value+" }\n  }\n}\n"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "f.hcl:4:") {
			t.Errorf("cpu = %.40s: %v, want %q in line 4", value, err, want)
		}
	}
	for _, value := range []string{"1e0", "2E+0", "0.5", "1" + strings.Repeat("*1", maxProducts)} {
		if _, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"true\"]\n    resources { cpu = "+value+" }\n  }\n}\n")); err != nil {
			t.Errorf("cpu = %.40s: %v", value, err)
		}
	}
}

// TestNestingIsBounded: what would take the parser all of its stack is refused, wherever it stands.
func TestNestingIsBounded(t *testing.T) {
	const many = 3000 // with a hundred times more the parser ends the program
	for text, want := range map[string]string{
		"(":          "nested too deep",
		"[":          "nested too deep",
		"{a=":        "nested too deep",
		"\"${":       "nested too deep",
		"-":          "too many operators",
		"!":          "too many operators",
		"1?1:":       "too many operators",
		"1+":         "too many operators",
		"[x][x]":     "too many operators",
		"1\n  a {\n": "nested too deep",
		"`\n  (":     "nested too deep",
	} {
		_, err := Parse("f.hcl", []byte("job \"j\" {\n  env = "+strings.Repeat(text, many)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q over and over: %.300v, want %q", text, err, want)
		}
	}
	deep := strings.Repeat("(", maxNesting-4) + "1" + strings.Repeat(")", maxNesting-4)
	if _, err := Parse("f.hcl", []byte("job \"j\" {\n  stage \"a\" {\n    command = [\"true\"]\n    resources { cpu = "+deep+" }\n  }\n}\n")); err != nil {
		t.Errorf("%d levels: %v", maxNesting, err)
	}
}

// TestNoText: a program that is taken for a job file is told of once, not byte by byte.
func TestNoText(t *testing.T) {
	const want = `ls is not text in UTF-8: a job file begins with job "name" { … }`
	if _, err := Parse("ls", []byte("\x7fELF\x02\x01\x00\x00")); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
