package hcl

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/jobspec"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each testdata/*.hcl has a golden file: the canonical JSON, or the message shown
// to the user.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.hcl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no job files: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".hcl"), func(t *testing.T) {
			src, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := renderGolden(t, filepath.Base(f), src)
			golden := strings.TrimSuffix(f, ".hcl") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("(-want +got, -update rewrites it)\n%s", d)
			}
		})
	}
}

func renderGolden(t *testing.T, name string, src []byte) string {
	t.Helper()
	j, err := Parse(name, src)
	if err != nil {
		return err.Error() + "\n"
	}
	b, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("again.json", b)
	if err != nil {
		t.Fatalf("the canonical JSON is refused: %v", err)
	}
	if d := cmp.Diff(j, again); d != "" {
		t.Errorf("canonical JSON changes the job (-hcl +json)\n%s", d)
	}
	return string(b) + "\n"
}

// One-line and multi-line forms are the same job.
func TestOneLineBlocks(t *testing.T) {
	one := `job "a" { stage "s" { command = ["x", "y"] tasks = 2 env = { A = "b" } resources { cpu=1 memory="1GiB"} } stage "t" { after = ["s"] command = ["z"] } }`
	many := "job \"a\" {\n stage \"s\" {\n  command = [\"x\", \"y\"]\n  tasks = 2\n  env = {\n A = \"b\"\n }\n  resources {\n   cpu = 1\n   memory = \"1GiB\"\n  }\n }\n stage \"t\" {\n  after = [\"s\"]\n  command = [\"z\"]\n }\n}\n"
	a, err := Parse("one.hcl", []byte(one))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("many.hcl", []byte(many))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("(-one line +many)\n%s", d)
	}
}

// Positions refer to the user's text, even after breaks were inserted.
func TestErrorPositionAfterOneLineBlocks(t *testing.T) {
	src := "job \"a\" {\n  stage \"s\" { command = [\"x\"] tasks = 2 resources { cpu = 1 memory = \"lots\" } }\n}\n"
	_, err := Parse("p.hcl", []byte(src))
	if err == nil || !strings.Contains(err.Error(), "on p.hcl:2:") || !strings.Contains(err.Error(), `memory = "lots"`) {
		t.Errorf("error does not show the place:\n%v", err)
	}
}

// TestManyProblems: the first ones are shown, and how many there are; the cost does not grow with them.
func TestManyProblems(t *testing.T) {
	_, err := Parse("j.hcl", []byte("job \"j\" {\n"+strings.Repeat("  nothing = 1\n", 501)+"}\n"))
	var all *Error
	if !errors.As(err, &all) || len(all.Diags) < 500 {
		t.Fatalf("%v", err)
	}
	text := err.Error()
	if n := strings.Count(text, "on j.hcl:"); n != maxShown || !strings.HasSuffix(text, fmt.Sprintf("and %d more problems", len(all.Diags)-maxShown)) {
		t.Errorf("%d problems are shown:\n%s", n, text)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.hcl")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	fuzztest.Run(f, func(t *testing.T, src []byte) {
		j, err := Parse("f.hcl", src)
		if err != nil {
			_ = err.Error()
			return
		}
		if ps := jobspec.Validate(j); len(ps) > 0 {
			t.Fatalf("a parsed job has problems: %v", ps)
		}
		b, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("f.json", b); err != nil {
			t.Fatalf("canonical JSON is refused: %v", err)
		}
	})
}

func TestFieldLines(t *testing.T) {
	src, err := os.ReadFile("testdata/wordcount.hcl")
	if err != nil {
		t.Fatal(err)
	}
	lines := FieldLines("wordcount.hcl", src)
	for path, want := range map[string]int{`stage["map"].resources.memory`: 10, `stage["reduce"].tasks`: 12, "output.path": 4} {
		if lines[path] != want {
			t.Errorf("%s stands on line %d, got %d", path, want, lines[path])
		}
	}
}
