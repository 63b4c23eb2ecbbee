package hcl

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testdata/problems.txt has, for each mistake of an author, a job file and what is answered: for each
// problem its line, the marked text, what is wrong, and the cure.
func TestProblems(t *testing.T) {
	const file = "testdata/problems.txt"
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split("\n"+string(script), "\n=== ")
	out := strings.TrimPrefix(cases[0], "\n")
	for _, c := range cases[1:] {
		title, body, _ := strings.Cut(c, "\n")
		src, want, ok := strings.Cut(strings.TrimRight(body, "\n")+"\n", "\n----\n")
		if !ok {
			t.Fatalf("case %q has no line ----", title)
		}
		got := renderProblems([]byte(src + "\n"))
		out += "\n=== " + title + "\n" + src + "\n----\n" + got
		want = strings.TrimSuffix(want, "\n")
		t.Run(title, func(t *testing.T) {
			if d := cmp.Diff(want, got); d != "" && !*update {
				t.Errorf("(-want +got, -update rewrites it)\n%s", d)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(out+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func renderProblems(src []byte) string {
	_, err := Parse("j.hcl", src)
	var all *Error
	if !errors.As(err, &all) {
		return fmt.Sprintf("%v", err)
	}
	var lines []string
	for _, d := range all.Diags {
		marked := string(src[min(d.Subject.Start.Byte, len(src)):min(d.Subject.End.Byte, len(src))])
		if first, _, more := strings.Cut(marked, "\n"); more {
			marked = first + "…"
		}
		lines = append(lines, fmt.Sprintf("%d: [%s] %s; %s", d.Subject.Start.Line, marked, d.Summary, d.Detail))
	}
	return strings.Join(lines, "\n")
}
