package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The figures in documents are those of the command beside them. A change of a scheduler that moves them fails here:
// run the command again, and write what it shows.
func TestDocumentedFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that figures in documents are what the commands beside them print, which takes about fifteen seconds of CPU time")
	}
	for _, c := range []struct {
		doc, command string                                // where it stands, and how its command begins
		instead      func(args []string) []string          // changes what takes too long; nil for none
		want         func(t *testing.T, out string) string // what the document has to say
	}{
		{"how-to/choose-a-scheduler.md", "drover sim compare -workload heavy_tailed", nil, func(t *testing.T, out string) string {
			d := deadlineRates(t, out, 3)
			return fmt.Sprintf("`3dsf` meets %s of the deadlines, the others %s and %s", d[0], d[1], d[2])
		}},
		{"explanation/scheduling/multifactor.md", "drover sim compare -workload poisson", nil, func(t *testing.T, out string) string {
			d := deadlineRates(t, out, 2)
			return fmt.Sprintf("Of the deadlines `easy` meets %s, `multifactor` %s", d[0], d[1])
		}},
		{"how-to/simulator.md", "drover sim size -workload poisson", nil, func(t *testing.T, out string) string {
			m := regexp.MustCompile(`(?s)^(\d+) machines: .*queueing theory estimated (\d+);`).FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("no answer in %q", out)
			}
			return fmt.Sprintf("| `poisson`: `jobs=2000 interval_s=2 tasks=20 task_s=20` | 95%% in 180 s | %s | %s |\n", m[2], m[1])
		}},
		{"how-to/simulator.md", "drover sim levels -workload benchmark", oneCost, func(t *testing.T, out string) string {
			met, response := levelsRow(t, out, "deadlines met"), levelsRow(t, out, "mean response")
			row := "| 1 |"
			for i := range met {
				row += fmt.Sprintf(" %.3f, %.0f |", met[i], response[i])
			}
			return row + "\n"
		}},
	} {
		t.Run(c.command, func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(filepath.Join(docsRoot, "docs", c.doc))
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), "\\\n", " ")
			_, rest, ok := strings.Cut(text, c.command)
			if !ok {
				t.Fatalf("%s has no command that begins with %q", c.doc, c.command)
			}
			line, _, _ := strings.Cut(rest, "\n")
			args := strings.Fields(c.command + line)
			if c.instead != nil {
				args = c.instead(args)
			}
			for i := range args {
				if args[i] == "-out" {
					args[i+1] = filepath.Join(t.TempDir(), "out")
				}
			}
			out, errs := &lockedBuffer{}, &lockedBuffer{}
			if err := launchTo(t, out, errs, args[0], args[1:]...).Wait(); err != nil {
				t.Fatalf("%v: %v\n%s", args, err, errs)
			}
			if want := c.want(t, out.String()); !strings.Contains(text, want) {
				t.Errorf("%s does not say %q beside its command, which prints\n%s", c.doc, want, out.String())
			}
		})
	}
}

var (
	measuredLinkRE = regexp.MustCompile(`\]\([a-z./]*measured/[a-z-]+\.md`)
	sectionRE      = regexp.MustCompile(`(?m)^(?:##|-) `) // an entry of a list, too
	figureRE       = regexp.MustCompile(`\b\d[\d,]* of \d[\d,]*\b|\b\d+\.\d+ ?(?:%|(?:s|ms|µs|MiB|GiB|MB/s)\b)`)
)

// copiedFigures returns what looks like a measurement in the sections of a document that send to a page of
// docs/measured: the next run replaces the page, and not its copies.
func copiedFigures(doc string) (figures []string) {
	for _, section := range sectionRE.Split(doc, -1) {
		if measuredLinkRE.MatchString(section) {
			figures = append(figures, figureRE.FindAllString(section, -1)...)
		}
	}
	return figures
}

func TestDocumentsCopyNoMeasuredFigures(t *testing.T) {
	const copied = "It [finds](../measured/mutants.md) 24 of 37 in 0.05 s.\n## Next\nOne of 12, and 3 of 4\n"
	if got := copiedFigures(copied); len(got) != 2 {
		t.Errorf("the figures of a text are %q", got)
	}
	linking := 0
	for _, name := range docFiles(t) {
		if strings.HasPrefix(name, "docs/measured/") || name == "CHANGELOG.md" {
			continue
		}
		doc := readDoc(t, name)
		if measuredLinkRE.MatchString(doc) {
			linking++
		}
		for _, figure := range copiedFigures(doc) {
			t.Errorf("%s says %q where it sends to docs/measured: leave the figure to that page", name, figure)
		}
	}
	if linking < 5 {
		t.Errorf("only %d documents send to docs/measured", linking)
	}
}

// oneCost leaves cost 1 alone of the costs of `drover sim levels`.
func oneCost(args []string) (out []string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "-cost" && args[i+1] != "1" {
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// deadlineRates returns the deadlines met of n schedulers, in percent.
func deadlineRates(t *testing.T, out string, n int) (percent []string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^deadline_rate .*$`).FindString(out)
	for _, f := range regexp.MustCompile(` (\d\.\d+) ±`).FindAllStringSubmatch(line, -1) {
		var v float64
		if err := json.Unmarshal([]byte(f[1]), &v); err != nil {
			t.Fatal(err)
		}
		percent = append(percent, fmt.Sprintf("%.0f%%", 100*v))
	}
	if len(percent) != n {
		t.Fatalf("%d deadline rates in %q, want %d", len(percent), line, n)
	}
	return percent
}

// levelsRow returns the row of cost 1 of a table of `drover sim levels`.
func levelsRow(t *testing.T, out, table string) (values []float64) {
	t.Helper()
	m := regexp.MustCompile(`(?s)\| ` + table + `[^\n]*\n[^\n]*\n\| 1 \|([^\n]*)\|\n`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no table of %s with a row of cost 1 in\n%s", table, out)
	}
	for _, cell := range strings.Split(m[1], "|") {
		var v float64
		if _, err := fmt.Sscan(strings.TrimLeft(cell, " *"), &v); err != nil {
			t.Fatalf("%q: %v", cell, err)
		}
		values = append(values, v)
	}
	return values
}
