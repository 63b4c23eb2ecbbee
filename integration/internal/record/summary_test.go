package record

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var summaryMachine = Machine{cpu: "A | B", cores: 2, memoryMB: 4096, load: 0.5, Others: UnknownOthers, filesystem: "ext4"}

// pageOf returns the page of a part with an output.
func pageOf(m Machine, output string) string {
	return Page(Measurement{Command: "x", At: time.Unix(0, 0), Commit: "abc", Machine: m, Output: output})
}

const summaryTargets = `== dev
measurement         value  target            note
job of one task     -      20 ms  not measured
start of a command  -      15 ms  not measured
== coordinator
measurement              value  target      note
restart                  4 s    3 s     MISSED  
one over three           1.5 times  2 times     met  
`

// Each target of today is in the summary, with the page's value, the target's own value, or none.
func TestSummarize(t *testing.T) {
	busy := summaryMachine
	busy.load = 9
	rows, others := Summarize(map[string]string{
		"dev":         pageOf(busy, devTable+"sort, wall   2.5 s\nsort, wall over dd   0.5 times\nsort, wall over Hadoop   -\n"),
		"coordinator": pageOf(summaryMachine, "measurement  value\nrestart  2 s  1 s  MISSED\n"),
		"chaos":       pageOf(summaryMachine, "no fault\n"),
		"README":      "# Measured\n",
	}, Targets(summaryTargets))
	if want := []string{"[chaos](chaos.md) of 1970-01-01T00:00:00Z completed"}; !slices.Equal(others, want) {
		t.Errorf("other pages: %q, want %q", others, want)
	}
	got := SummaryPage("bench", rows, others, "")
	_, got, _ = strings.Cut(got, "jsonl) has the same rows.\n\n")
	const day, dayBusy = " | 1970-01-01 | abc | A \\| B, 2 cores, 4096 MiB |\n", " | 1970-01-01 | abc | A \\| B, 2 cores, 4096 MiB, had other work |\n"
	want := "Targets: 1 met, 2 missed, 1 not measured.\n\n" +
		"| part | measurement | value | peer or limit | ratio | target | | date | commit | machine |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n" +
		"| [coordinator](coordinator.md) | restart | 4 s | | | 3 s | **MISSED**" + day +
		"| [coordinator](coordinator.md) | one | | three | 1.5 | 2 times | met" + day +
		"| [dev](dev.md) | job of one task | 25.1 ms | | | 20 ms | **MISSED**" + dayBusy +
		"| [dev](dev.md) | start of a command | | | | 15 ms | not measured" + dayBusy +
		"| [dev](dev.md) | sort, wall | 2.5 s | dd | 0.5 | |" + dayBusy +
		"| [dev](dev.md) | sort, wall | 2.5 s | Hadoop | | | not measured" + dayBusy +
		"| [dev](dev.md) | tasks of true | 775 /s | | | |" + dayBusy +
		"\nPages without such figures: [chaos](chaos.md) of 1970-01-01T00:00:00Z completed.\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	text, err := Ledger(rows)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseLedger[Row](text); err != nil || !slices.Equal(back, rows) {
		t.Errorf("the ledger is read back with %v as %+v", err, back)
	}
}

// A target of a part without a page is not measured either.
func TestTargetsWithoutPages(t *testing.T) {
	rows, _ := Summarize(nil, Targets(summaryTargets))
	var got []string
	for _, r := range rows {
		got = append(got, r.Part+" "+r.Measurement+" "+r.Status)
	}
	want := []string{"coordinator restart MISSED", "coordinator one met", "dev job of one task not measured", "dev start of a command not measured"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A summary is compared with the last one as its pages are: ratios always, values on the same quiet machine.
func TestCompareSummaries(t *testing.T) {
	other, busy := summaryMachine, summaryMachine
	other.cores, busy.load = 4, 9
	of := func(m Machine, table string) []Row {
		rows, _ := Summarize(map[string]string{"dev": pageOf(m, table)}, nil)
		return rows
	}
	before := of(summaryMachine, sortTable)
	slower := strings.NewReplacer("2.5 s", "9.5 s", "0.500", "0.700").Replace(sortTable)
	const ratio = "| dev: sort, wall over dd | 0.5 | 0.7 | **worse** |\n"
	for _, c := range []struct {
		name   string
		before []Row
		now    []Row
		want   []string // lines
		worse  int
	}{
		{"no summary", nil, before, nil, 0},
		{"equal", before, before, []string{"2 figures compared"}, 0},
		{"slower", before, of(summaryMachine, slower), []string{ratio, "| dev: sort, wall | 2.5 | 9.5 | **worse** |\n", "2 figures compared"}, 2},
		{"another machine", before, of(other, slower), []string{ratio, "1 figures compared", "Not compared: 1 "}, 1},
		{"a busy machine", of(busy, sortTable), of(summaryMachine, slower), []string{ratio, "1 figures compared", "Not compared: 1 "}, 1},
		{"no longer measured", before, of(summaryMachine, strings.Replace(sortTable, "0.500 times", "-", 1)), []string{"1 figures compared"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, worse := CompareSummaries(c.before, c.now)
			if worse != c.worse || (len(c.want) == 0) != (got == "") || strings.Contains(got, "Not compared") != slices.Contains(c.want, "Not compared: 1 ") {
				t.Errorf("%d worse, want %d:\n%s", worse, c.worse, got)
			}
			for _, line := range c.want {
				if !strings.Contains(got, line) {
					t.Errorf("%q is not in\n%s", line, got)
				}
			}
		})
	}
}
