package record

import (
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
	coordinatorTable = `NODES  TASKS  PLACEMENTS/S  RECEIPT P50 MS  P99 MS  SUBMISSIONS/S  P50 MS  P99 MS
20     100    592           9               10      225            393     441
`
	goOutput = `goos: linux
BenchmarkSort-1   1   300 ns/op   40.0 MB/s
BenchmarkSort-1   1   100 ns/op   60.0 MB/s
BenchmarkSort-1   1   200 ns/op   50.0 MB/s
PASS
`
)

func TestFigures(t *testing.T) {
	want := []figure{
		{name: "job of one task", value: 25.1},
		{name: "tasks of true", value: 775, higher: true},
		{name: "nodes 100, tenants 1, tasks 0, features plain, policy fifo, PLACEMENTS/S", value: 106407, higher: true},
		{name: "nodes 100, tenants 1, tasks 0, features plain, policy fifo, P50 MS", value: 0.76},
		{name: "nodes 100, tenants 1, tasks 0, features plain, policy fifo, RSS", value: 47},
		{name: "nodes 20, tasks 100, PLACEMENTS/S", value: 592, higher: true},
		{name: "nodes 20, tasks 100, RECEIPT P50 MS", value: 9},
		{name: "nodes 20, tasks 100, P99 MS", value: 10},
		{name: "nodes 20, tasks 100, SUBMISSIONS/S", value: 225, higher: true},
		{name: "nodes 20, tasks 100, P50 MS", value: 393},
		{name: "nodes 20, tasks 100, SUBMISSIONS/S P99 MS", value: 441},
		{name: "BenchmarkSort-1 ns/op", value: 200},
		{name: "BenchmarkSort-1 MB/s", value: 50, higher: true},
	}
	got := figures(devTable + "\n" + schedulerTable + "\n" + coordinatorTable + "\n" + goOutput)
	if d := cmp.Diff(want, got, cmp.AllowUnexported(figure{})); d != "" {
		t.Error(d)
	}
}

func TestCompare(t *testing.T) {
	quiet := Machine{cpu: "A | B", cores: 2, memoryMB: 4096, load: 0.5}
	measured := func(m Machine, output string) Measurement {
		return Measurement{Part: "dev", Command: "x", At: time.Unix(0, 0), Commit: "abc", Machine: m, Output: output}
	}
	other, busy := quiet, quiet
	other.cores, busy.load = 4, 9
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
		{"busy", Page(measured(busy, devTable)), measured(quiet, devTable), "Not compared: the machine had other work during one of them.\n", 0},
		{"busy now", Page(measured(quiet, devTable)), measured(busy, devTable), "Not compared: the machine had other work during one of them.\n", 0},
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
