package record

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-run/drover/internal/median"
)

// tolerance is the relative change that counts as noise.
const tolerance = 0.10

// figure is one number of a benchmark's output.
type figure struct {
	name   string // unique within an output
	value  float64
	higher bool // whether a larger value is better
}

// columns holds the result columns of the tables of `drover bench`, and whether a larger value is
// better. Columns of settings become part of a figure's name; other columns are not compared.
var columns = map[string]bool{
	"PLACEMENTS/S": true, "PER CPU S": true, "REGISTER/S": true, "REPORTS/S": true, "NODES AT HALF A CORE": true, "SUBMISSIONS/S": true, "AT A RATE/S": true,
	"P50 MS": false, "P99 MS": false, "RECEIPT P50 MS": false, "RECEIPT P99 MS": false, "FAILOVER MS": false, "RSS": false, "ALLOCS": false,
}

var settingColumns = []string{"SERVERS", "NODES", "TENANTS", "TASKS", "FEATURES", "PLANNING", "POLICY", "SYNC", "PAGES"}

var (
	cells   = regexp.MustCompile(`\s{2,}`)
	goBench = regexp.MustCompile(`^(Benchmark\S+)\s+\d+\s+(\d.*)$`)
	number  = regexp.MustCompile(`^(-?[0-9.]+(?:e[+-]?[0-9]+)?)(?: (.*))?$`)
)

// figures returns the numbers of a benchmark's output, in its order: those of Go's benchmarks (the
// median of equal names), of tables of `drover bench`, and of devbench's table.
func figures(output string) []figure {
	var out []figure
	of := map[string][]float64{}
	add := func(name string, value float64, higher bool) {
		if of[name] == nil {
			out = append(out, figure{name: name, higher: higher})
		}
		of[name] = append(of[name], value)
	}
	var header []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		row := cells.Split(line, -1)
		if m := goBench.FindStringSubmatch(line); m != nil {
			addGoBench(m[1], strings.Fields(m[2]), add)
			continue
		}
		switch {
		case slices.Contains(row, "PLACEMENTS/S") || row[0] == "measurement":
			header = row
		case len(header) > 0 && header[0] == "measurement" && len(row) >= 2:
			if v, unit, ok := quantity(row[1]); ok {
				add(row[0], v, strings.HasSuffix(unit, "/s"))
			}
		case len(header) > 0 && len(row) == len(header):
			addRow(header, row, add)
		default:
			header = nil
		}
	}
	for i := range out {
		out[i].value = median.Of(of[out[i].name])
	}
	return out
}

// addGoBench adds the pairs of value and unit of a line of a Go benchmark.
func addGoBench(name string, pairs []string, add func(string, float64, bool)) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if v, err := strconv.ParseFloat(pairs[i], 64); err == nil {
			add(name+" "+pairs[i+1], v, strings.HasSuffix(pairs[i+1], "/s"))
		}
	}
}

// addRow adds the results of one row of a table. A column whose name occurs more than once
// belongs to the rate before it.
func addRow(header, row []string, add func(string, float64, bool)) {
	var settings []string
	rate := ""
	times := map[string]int{}
	for _, column := range header {
		times[column]++
	}
	for i, column := range header {
		if slices.Contains(settingColumns, column) {
			settings = append(settings, strings.ToLower(column)+" "+row[i])
			continue
		}
		higher, ok := columns[column]
		v, _, isNumber := quantity(row[i])
		if !ok || !isNumber {
			continue
		}
		name := column
		if higher {
			rate = column
		} else if times[column] > 1 {
			name = rate + " " + column
		}
		add(strings.Join(append(slices.Clone(settings), name), ", "), v, higher)
	}
}

// quantity returns the number and the unit of a cell such as "1.25 ms".
func quantity(cell string) (v float64, unit string, ok bool) {
	m := number.FindStringSubmatch(cell)
	if m == nil {
		return 0, "", false
	}
	v, err := strconv.ParseFloat(m[1], 64)
	return v, m[2], err == nil
}

// change is a figure that both pages have.
type change struct {
	name        string
	before, now float64
	worse       float64 // relative: 0.2 is a fifth worse, negative is better
}

// changes returns the figures of both outputs, the worst change first. Figures that are zero before
// have no relative change.
func changes(before, now string) (out []change) {
	was := map[string]float64{}
	for _, f := range figures(before) {
		was[f.name] = f.value
	}
	for _, f := range figures(now) {
		b := was[f.name]
		if b == 0 || f.value == 0 {
			continue
		}
		worse := f.value/b - 1
		if f.higher {
			worse = b/f.value - 1
		}
		out = append(out, change{name: f.name, before: b, now: f.value, worse: worse})
	}
	slices.SortStableFunc(out, func(a, b change) int { return cmp.Compare(b.worse, a.worse) })
	return out
}

// Compare compares a measurement with an earlier page of the same part. It returns the figures that
// changed by more than a tenth, as Markdown, and the number of figures that became worse. It does
// not compare pages of different machines or commands, of busy machines, or without known figures;
// the text then says so.
func Compare(page string, m Measurement) (text string, worse int) {
	if page == "" {
		return "", 0
	}
	commit := pageRow(page, "commit")
	heading := fmt.Sprintf("\n## Against the page before (commit %s)\n", commit)
	switch _, output, ok := strings.Cut(page, "\n```\n"); {
	case !ok || commit == "":
		return "", 0
	case pageCommand(page) != m.Command:
		return heading + fmt.Sprintf("Not compared: it was measured by `%s`.\n", pageCommand(page)), 0
	case pageRow(page, "machine") != m.Machine.row():
		return heading + "Not compared: it was measured on another machine.\n", 0
	case pageRow(page, filesystemRow) != m.Machine.filesystem && pageRow(page, filesystemRow) != "": // older pages do not have the row
		return heading + "Not compared: its temporary files were on another file system.\n", 0
	case m.Machine.busy() || strings.Contains(pageRow(page, "load"), busyNote):
		return heading + "Not compared: the machine had other work during one of them.\n", 0
	default:
		output, _, _ = strings.Cut(output, "\n```\n")
		all := changes(output, m.Output)
		switch {
		case len(figures(m.Output)) == 0:
			return heading + "Not compared: the tables of this part have no figures that are known to be better or worse.\n", 0
		case len(all) == 0:
			return heading + "Not compared: no figure has the same name and settings.\n", 0
		}
		table, worse := changeTable(all)
		return heading + table, worse
	}
}

// changeTable returns the changes beyond noise as a Markdown table, and how many of them are for
// the worse.
func changeTable(all []change) (text string, worse int) {
	var b strings.Builder
	for _, c := range all {
		if math.Abs(c.worse) <= tolerance {
			continue
		}
		word := "better"
		if c.worse > 0 {
			word, worse = "**worse**", worse+1
		}
		if b.Len() == 0 {
			b.WriteString("| figure | before | now | |\n| --- | --- | --- | --- |\n")
		}
		fmt.Fprintf(&b, "| %s | %.4g | %.4g | %s |\n", strings.ReplaceAll(c.name, "|", `\|`), c.before, c.now, word)
	}
	return fmt.Sprintf("%s%d figures compared; not listed: changes of at most %.0f%%.\n", b.String(), len(all), 100*tolerance), worse
}

// pageCommand returns the command that wrote a page, according to the page.
func pageCommand(page string) string {
	_, rest, _ := strings.Cut(page, beforeCommand)
	command, _, _ := strings.Cut(rest, afterCommand)
	return command
}

// pageRow returns the value of a row of a page's table, "" if there is none.
func pageRow(page, key string) string {
	_, rest, ok := strings.Cut(page, "\n| "+key+" | ")
	if !ok {
		return ""
	}
	value, _, _ := strings.Cut(rest, " |\n")
	return value
}
