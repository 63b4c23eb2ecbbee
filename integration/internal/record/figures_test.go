package record

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/seed"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// describe returns a line for each figure.
func describe(all []figure) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%s: %.6g %s", f.name, f.value, f.unit)
		for _, word := range []struct {
			text string
			is   bool
		}{{"higher is better", f.higher}, {"ratio", f.ratio}, {f.status(), f.target != 0 || f.missing}, {fmt.Sprintf("target %.6g", f.target), f.target != 0}} {
			if word.is {
				b.WriteString(", " + word.text)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// The figures of the outputs of parts, as they print them.
func TestFiguresOfParts(t *testing.T) {
	outputs, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(outputs) < 7 {
		t.Fatalf("%d outputs, %v", len(outputs), err)
	}
	for _, file := range outputs {
		output, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, golden := describe(figures(string(output))), strings.TrimSuffix(file, ".txt")+".figures"
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
			t.Errorf("%s:\n%s", file, d)
		}
	}
}

// Bad pages are no reason to end: whatever they say, they have fewer figures, or other ones.
func TestBadPagesHaveFiguresOrNone(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	outputs, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range outputs {
		output, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		whole := []byte(Page(Measurement{Part: "x", Command: "x", Commit: "abc", Output: string(output)}))
		for range 300 {
			page := append([]byte{}, whole...)
			for range 1 + r.IntN(20) {
				i := r.IntN(len(page))
				page[i] = "  \n\t-.,:|%`09ex"[r.IntN(14)]
			}
			from := r.IntN(len(page))
			damaged := string(page[:from]) + string(page[from+r.IntN(len(page)-from):])
			text, _ := Compare(damaged, Measurement{Command: "x", Commit: "abc", Output: damaged})
			rows, others := Summarize(map[string]string{"x": damaged}, Targets("== x\n"+damaged))
			against, _ := CompareSummaries(rows, rows)
			if page := SummaryPage("x", rows, others, text+against); !strings.HasPrefix(page, "# Measured: summary\n") {
				t.Fatalf("the summary of %q is %q", damaged, page)
			}
		}
	}
}
