package record

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	devTable = `measurement             value    target          note
job of one task         25.1 ms  25 ms   MISSED  min 24
tasks of true           775 /s                   2,000 in one stage
`
	schedulerTable = `progress ...
NODES  TENANTS  TASKS  FEATURES  POLICY  PLACEMENTS/S  MIN     MAX     P50 MS  RSS
100    1        0      plain     fifo    106407        106407  124317  0.76    47 MiB
`
	goOutput = `goos: linux
BenchmarkSort-1   1   300 ns/op   40.0 MB/s
BenchmarkSort-1   1   100 ns/op   60.0 MB/s
BenchmarkSort-1   1   200 ns/op   50.0 MB/s
PASS
`
	sortTable = `measurement          value        note
sort, wall           2.5 s        median of 5
sort, wall over dd   0.500 times  median of 5 pairs
`
)

func TestFigures(t *testing.T) {
	const of = "nodes 100, tenants 1, tasks 0, features plain, policy fifo, "
	want := []figure{
		{name: "job of one task", value: 25.1, unit: "ms", target: 25},
		{name: "tasks of true", value: 775, unit: "/s", higher: true},
		{name: of + "PLACEMENTS/S", value: 106407, unit: "/s", higher: true},
		{name: of + "P50 MS", value: 0.76, unit: "ms"},
		{name: of + "RSS", value: 47, unit: "MiB"},
		{name: "BenchmarkSort-1 ns/op", value: 200, unit: "ns/op"},
		{name: "BenchmarkSort-1 MB/s", value: 50, unit: "MB/s", higher: true},
	}
	got := figures(devTable + "\n" + schedulerTable + "\n" + goOutput)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(figure{})); d != "" {
		t.Error(d)
	}
}

// coordinatorTable returns a table with the header that `drover bench coordinator` prints.
func coordinatorTable(t *testing.T, rows ...map[string]string) string {
	t.Helper()
	source, err := os.ReadFile("../../../cmd/drover/bench_coordinator.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(source), "\nvar benchCoordinatorHeader = []string{")
	list, _, end := strings.Cut(list, "}\n")
	if !ok || !end {
		t.Fatal("bench_coordinator.go has no benchCoordinatorHeader")
	}
	var b strings.Builder
	var header []string
	for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(list, -1) {
		header = append(header, strings.ToUpper(m[1]))
	}
	b.WriteString(strings.Join(header, "  "))
	for _, row := range rows {
		for i, column := range header {
			value := strconv.Itoa(100 + i)
			if v, ok := row[column]; ok {
				value = v
			}
			b.WriteString(map[bool]string{true: "\n", false: "  "}[i == 0] + value)
		}
	}
	return b.String() + "\n"
}

// Each number of the coordinator's table has a name that says what it measures, and rows of other
// settings are other figures.
func TestFiguresOfCoordinators(t *testing.T) {
	setting := map[string]string{"SERVERS": "1", "NODES": "20", "TASKS": "100", "SYNC": "disk", "PAGES": "0", "FAILOVER MS": "-"}
	with := func(column, value string) map[string]string {
		row := maps.Clone(setting)
		row[column] = value
		return row
	}
	var names []string
	for _, f := range figures(coordinatorTable(t, setting, setting)) {
		names = append(names, strings.TrimPrefix(f.name, "servers 1, nodes 20, tasks 100, sync disk, pages 0, "))
	}
	want := []string{"REGISTER/S", "REPORTS/S", "NODES AT HALF A CORE", "PLACEMENTS/S", "PER CPU S", "RECEIPT P50 MS", "RECEIPT P99 MS",
		"SUBMISSIONS/S", "SUBMISSIONS/S P50 MS", "SUBMISSIONS/S P99 MS", "AT A RATE/S", "AT A RATE/S P50 MS", "AT A RATE/S P99 MS", "RSS"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	for column, value := range map[string]string{"SERVERS": "3", "SYNC": "no", "PAGES": "50"} {
		if got := figures(coordinatorTable(t, setting, with(column, value))); len(got) != 2*len(want) {
			t.Errorf("rows that differ in %s are %d figures, want %d", column, len(got), 2*len(want))
		}
	}
	if got := figures(coordinatorTable(t, with("FAILOVER MS", "1300"))); got[len(got)-1].value != 1300 || got[len(got)-1].higher {
		t.Errorf("the loss of a leader is %+v", got[len(got)-1])
	}
}

// Decisions with and without planning are different figures.
func TestFiguresOfPlanning(t *testing.T) {
	const planning = "NODES  PLANNING  POLICY  PLACEMENTS/S\n1  no  3dsf  10\n1  yes  3dsf  20\n"
	if got := figures(planning); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// The README of the pages has a row for each, and says which parts are compared.
func TestComparedParts(t *testing.T) {
	const dir = "../../../docs/measured/"
	readme, err := os.ReadFile(dir + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(readme), "\"Not compared\":\n")
	list, _, _ = strings.Cut(list, "\n")
	pages, err := filepath.Glob(dir + "*.md")
	if !ok || err != nil || len(pages) < 10 {
		t.Fatalf("no list of compared parts, or only %d pages, %v", len(pages), err)
	}
	for _, file := range pages {
		part := strings.TrimSuffix(filepath.Base(file), ".md")
		if part == "README" {
			continue
		}
		if !strings.Contains(string(readme), "\n| `"+part+"` | ") {
			t.Errorf("README.md has no row of part %s", part)
		}
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, output, _ := strings.Cut(string(page), "\n```\n")
		output, _, _ = strings.Cut(output, "\n```\n")
		if got, said := len(figures(output)), strings.Contains(list, "`"+part+"`"); got > 0 != said {
			t.Errorf("%d figures of part %s are compared, README.md says %v", got, part, said)
		}
	}
}

func TestCompare(t *testing.T) {
	quiet := Machine{cpu: "A | B", cores: 2, memoryMB: 4096, load: 0.5, Others: UnknownOthers, filesystem: "ext4"}
	measured := func(m Machine, output string) Measurement {
		return Measurement{Part: "dev", Command: "x", At: time.Unix(0, 0), Commit: "abc", Machine: m, Output: output}
	}
	other, busy, shared, own := quiet, quiet, quiet, quiet
	inMemory := quiet
	inMemory.filesystem = "tmpfs"
	other.cores, busy.load, shared.Others = 4, 9, 0.5
	own.load, own.Others = 9, 0.01 // the benchmark itself loaded the machine
	memory := measured(quiet, devTable)
	memory.Command = "TMPDIR='/dev/shm' x"
	slower := strings.NewReplacer("2.5 s", "9.5 s", "0.500", "0.700").Replace(sortTable)
	const slowerText = "| figure | before | now | |\n| --- | --- | --- | --- |\n" +
		"| sort, wall over dd | 0.5 | 0.7 | **worse** |\n1 figures compared; not listed: changes of at most 10%.\n"
	changed := strings.NewReplacer("25.1 ms", "28.0 ms", "775 /s", "900 /s").Replace(devTable)
	for _, c := range []struct {
		name   string
		before string
		now    Measurement
		want   string
		worse  int
	}{
		{"no page", "", measured(quiet, devTable), "", 0},
		{"no measurement", "# Something else\n", measured(quiet, devTable), "", 0},
		{"equal", Page(measured(quiet, devTable)), measured(quiet, devTable), "2 figures compared; not listed: changes of at most 10%.\n", 0},
		{"another machine", Page(measured(other, devTable)), measured(quiet, devTable), "Not compared: it was measured on another machine.\n", 0},
		{"in memory", Page(measured(inMemory, devTable)), measured(quiet, devTable), "Not compared: its temporary files were on another file system.\n", 0},
		{"busy", Page(measured(busy, devTable)), measured(quiet, devTable), "Not compared: the machine had other work during one of them.\n", 0},
		{"busy now", Page(measured(quiet, devTable)), measured(busy, devTable), "Not compared: the machine had other work during one of them.\n", 0},
		{"not busy at the end, but before", Page(measured(shared, devTable)), measured(quiet, devTable), "Not compared: the machine had other work during one of them.\n", 0},
		{"loaded by the benchmark", Page(measured(own, devTable)), measured(own, devTable), "2 figures compared; not listed: changes of at most 10%.\n", 0},
		{"ratios of another machine", Page(measured(other, sortTable)), measured(quiet, slower), "Ratios alone: it was measured on another machine.\n\n" + slowerText, 1},
		{"ratios of a busy machine", Page(measured(quiet, sortTable)), measured(busy, slower), "Ratios alone: the machine had other work during one of them.\n\n" + slowerText, 1},
		{"ratios in memory", Page(measured(inMemory, sortTable)), measured(quiet, slower), "Not compared: its temporary files were on another file system.\n", 0},
		{"other settings", Page(memory), measured(quiet, devTable), "Not compared: it was measured by `TMPDIR='/dev/shm' x`.\n", 0},
		{"a table of another kind", Page(measured(quiet, "FLOOD  READ MS\nlists  5\n")), measured(quiet, "FLOOD  READ MS\nlists  9\n"),
			"Not compared: the tables of this part have no figures that are known to be better or worse.\n", 0},
		{"no figure of the same name", Page(measured(quiet, schedulerTable)), measured(quiet, devTable), "Not compared: no figure has the same name and settings.\n", 0},
		{"changed", Page(measured(quiet, devTable)), measured(quiet, changed), "| figure | before | now | |\n| --- | --- | --- | --- |\n" +
			"| job of one task | 25.1 | 28 | **worse** |\n| tasks of true | 775 | 900 | better |\n2 figures compared; not listed: changes of at most 10%.\n", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if want != "" {
				want = "\n## Against the page before (commit abc)\n" + want
			}
			if got, worse := Compare(c.before, c.now); got != want || worse != c.worse {
				t.Errorf("%d worse, want %d:\n%s\nwant:\n%s", worse, c.worse, got, want)
			}
		})
	}
}
