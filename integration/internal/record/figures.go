package record

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/median"
)

// figure is one number of a benchmark's output.
type figure struct {
	name    string // unique within an output; that of a ratio is "X over Y"
	value   float64
	unit    string
	higher  bool    // whether a larger value is better
	ratio   bool    // it was divided by that of a peer or a limit, which was measured in the same run
	target  float64 // the most that it may be, or the least if higher; 0 if there is none
	missing bool    // the output says that it was not measured
}

// status says whether a target is met, "" if there is none.
func (f figure) status() string {
	switch {
	case f.missing:
		return notMeasuredText
	case f.target == 0:
		return ""
	case f.higher && f.value >= f.target || !f.higher && f.value <= f.target:
		return metText
	default:
		return missedText
	}
}

// ratioName returns the name of the ratio of a figure to that of a peer or a limit.
func ratioName(what, peer string) string { return what + over + peer }

// over stands between the names of a figure and its peer in the name of a ratio.
const over = " over "

// isRate reports whether more is better of a figure with this name and unit: a rate, or the ratio
// of rates.
func isRate(name, unit string) bool {
	return strings.Contains(unit, "/s") || strings.Contains(name, " rate"+over)
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

// figures returns the numbers of a benchmark's output, in its order, each the median of those with
// the same name: those of Go's benchmarks, of the tables of devbench, targets.sh and `drover
// bench`, and of the sentences that sentences lists. It passes over what it does not know.
func figures(output string) []figure {
	p := parser{values: map[string][]float64{}}
	for line := range strings.Lines(output) {
		p.line(strings.TrimSpace(line))
	}
	for i := range p.out {
		p.out[i].value = median.Of(p.values[p.out[i].name])
	}
	return p.out
}

// parser collects the figures of an output.
type parser struct {
	out    []figure
	values map[string][]float64 // of each name
	header []string             // of the table that the last line belongs to; nil outside tables
	count  string               // containers of the table of `drover bench task`
}

func (p *parser) add(f figure) {
	if p.values[f.name] == nil {
		p.out = append(p.out, f)
	}
	p.values[f.name] = append(p.values[f.name], f.value)
}

// line parses one line, without the white space around it.
func (p *parser) line(line string) {
	if m := goBench.FindStringSubmatch(line); m != nil {
		p.addGoBench(m[1], strings.Fields(m[2]))
		return
	}
	for _, s := range sentences {
		if m := s.form.FindStringSubmatch(line); m != nil {
			s.parse(p, m)
			return
		}
	}
	row := cells.Split(line, -1)
	switch {
	case isHeader(row):
		p.header, p.count = row, ""
	case len(p.header) == 0:
	case p.header[0] == measurementColumn && len(row) >= 2:
		p.addMeasurement(row)
	case len(row) != len(p.header):
		p.header = nil
	case p.header[0] == containersColumn:
		p.addContainers(row)
	case p.header[0] == levelColumn:
		p.addLevel(row)
	default:
		p.addRow(row)
	}
}

// The first columns of tables: of devbench and targets.sh, of `drover bench task`, and of `drover
// bench suspend`.
const (
	measurementColumn = "measurement"
	containersColumn  = "CONTAINERS"
	levelColumn       = "LEVEL"
)

// isHeader reports whether a row is the header of a table with figures.
func isHeader(row []string) bool {
	switch row[0] {
	case measurementColumn:
		return true
	case containersColumn:
		return slices.Contains(row, ratioColumn)
	case levelColumn:
		return slices.Contains(row, suspendColumn)
	default:
		return slices.Contains(row, "PLACEMENTS/S")
	}
}

// addGoBench adds the pairs of value and unit of a line of a Go benchmark.
func (p *parser) addGoBench(name string, pairs []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if v, err := strconv.ParseFloat(pairs[i], 64); err == nil {
			p.add(figure{name: name + " " + pairs[i+1], value: v, unit: pairs[i+1], higher: isRate("", pairs[i+1])})
		}
	}
}

// The words of a target in the tables of devbench and targets.sh.
const (
	metText         = "met"
	missedText      = "MISSED"
	notMeasuredText = "not measured"
)

// addMeasurement adds a row of the tables of devbench and targets.sh: name, value, then target and
// whether it is met, which both may be absent, then a note.
func (p *parser) addMeasurement(row []string) {
	f := figure{name: row[0]}
	v, unit, ok := quantity(row[1])
	f.value, f.unit = v, unit
	if len(row) >= 4 && slices.Contains([]string{metText, missedText, notMeasuredText}, row[3]) {
		target, targetUnit, known := quantity(row[2])
		if !ok && known {
			f.missing, f.unit, ok = true, targetUnit, true
		}
		f.target = target
	} else if row[1] == "-" {
		f.missing, ok = true, true
	}
	if !ok {
		return
	}
	if f.unit == "" && f.missing && strings.Contains(f.name, over) {
		f.unit = "times"
	}
	f.ratio = f.unit == "times" && strings.Contains(f.name, over)
	f.higher = isRate(f.name, f.unit)
	p.add(f)
}

// addRow adds the results of one row of the other tables of `drover bench`. A column whose name
// occurs more than once belongs to the rate before it.
func (p *parser) addRow(row []string) {
	var settings []string
	rate := ""
	times := map[string]int{}
	for _, column := range p.header {
		times[column]++
	}
	for i, column := range p.header {
		if slices.Contains(settingColumns, column) {
			settings = append(settings, strings.ToLower(column)+" "+row[i])
			continue
		}
		higher, ok := columns[column]
		v, unit, isNumber := quantity(row[i])
		if !ok || !isNumber {
			continue
		}
		name := column
		switch {
		case higher:
			rate = column
		case times[column] > 1:
			name = rate + " " + column
		}
		if unit == "" && strings.HasSuffix(column, " MS") {
			unit = "ms"
		} else if unit == "" && (strings.HasSuffix(column, "/S") || column == "PER CPU S") {
			unit = "/s"
		}
		p.add(figure{name: strings.Join(append(slices.Clone(settings), name), ", "), value: v, unit: unit, higher: higher})
	}
}

// Columns of the table of `drover bench task`: ours are durations, each followed by its ratio to
// `ctr run`.
const (
	droverColumn    = "DROVER"
	usedAgainColumn = "USED AGAIN"
	ratioColumn     = "RATIO"
	ctrPeer         = "ctr run"
)

var containersOf = regexp.MustCompile(`^(\d+), (.+)$`)

// addContainers adds a row of the table of `drover bench task`. Its first rows are named "5, wall",
// those of the parts of the CPU time below them "of it containerd".
func (p *parser) addContainers(row []string) {
	what, isPart := strings.CutPrefix(row[0], "of it ")
	if m := containersOf.FindStringSubmatch(row[0]); m != nil {
		p.count, what = m[1], m[2]
	} else if !isPart || p.count == "" {
		return
	}
	if isPart {
		what = "CPU of " + what
	}
	name := ""
	for i, column := range p.header {
		switch column {
		case droverColumn:
			name = p.count + " containers, " + what
		case usedAgainColumn:
			name = p.count + " containers used again, " + what
		case ratioColumn:
			if v, _, ok := quantity(row[i]); ok && name != "" {
				p.add(figure{name: ratioName(name, ctrPeer), value: v, unit: "times", ratio: true})
			}
			continue
		default:
			continue
		}
		p.addSeconds(name, row[i])
	}
}

// Columns of the table of `drover bench suspend`.
const (
	suspendColumn = "SUSPEND: MEDIAN"
	resumeColumn  = "RESUME: MEDIAN"
)

// addLevel adds the medians of a level of suspension.
func (p *parser) addLevel(row []string) {
	for i, column := range p.header {
		switch column {
		case suspendColumn:
			p.addSeconds(row[0]+": suspension, median", row[i])
		case resumeColumn:
			p.addSeconds(row[0]+": resumption, median", row[i])
		}
	}
}

// addSeconds adds a duration such as 1.5s, if it is one.
func (p *parser) addSeconds(name, cell string) {
	if d, err := time.ParseDuration(cell); err == nil {
		p.add(figure{name: name, value: d.Seconds(), unit: "s"})
	}
}

// addNumber adds a figure whose value is a text, if it is a number.
func (p *parser) addNumber(f figure, text string) {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		f.value = v
		p.add(f)
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
