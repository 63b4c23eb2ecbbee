package record

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Row is a figure of the summary of all pages.
type Row struct {
	Part        string  `json:"part"`
	Measurement string  `json:"measurement"`
	Value       float64 `json:"value,omitempty"` // of the measurement; of a ratio 0 if the page has no such figure
	Unit        string  `json:"unit,omitempty"`
	Peer        string  `json:"peer,omitempty"`  // the peer or limit of a ratio
	Ratio       float64 `json:"ratio,omitempty"` // the figure over that of the peer, in the same run
	Target      float64 `json:"target,omitempty"`
	Higher      bool    `json:"higher_is_better,omitempty"` // of the ratio where there is a peer; then the target is the least, else the most
	Status      string  `json:"status,omitempty"`           // met or MISSED, if there is a target; not measured
	Date        string  `json:"date,omitempty"`
	Commit      string  `json:"commit,omitempty"`
	Machine     string  `json:"machine,omitempty"`
	Filesystem  string  `json:"temporary_files,omitempty"`
	Busy        bool    `json:"busy,omitempty"`    // the machine had other work
	Command     string  `json:"command,omitempty"` // that repeats the measurement
}

// Targets returns the figures that have targets now, of each part, from the text of tables as devbench
// and targets.sh print them; a line "== PART" is before those of a part.
func Targets(text string) map[string][]figure {
	targets := map[string][]figure{}
	for section := range strings.SplitSeq("\n"+text, "\n== ") {
		part, table, _ := strings.Cut(section, "\n")
		targets[strings.TrimSpace(part)] = slices.DeleteFunc(figures(table), func(f figure) bool { return f.target == 0 })
	}
	delete(targets, "")
	return targets
}

// Summarize returns the figures of pages, by their names without .md: those with targets, then those beside a peer,
// then the others, each in the order of parts and of the pages. The targets are those of today, whatever the pages
// say. If a target has a value, the figure has it too; a target without a figure is not measured. Others are
// the pages without figures, with their results.
func Summarize(pages map[string]string, targets map[string][]figure) (rows []Row, others []string) {
	parts := slices.AppendSeq(slices.Collect(maps.Keys(targets)), maps.Keys(pages))
	slices.Sort(parts)
	for _, part := range slices.Compact(parts) {
		p, ok := parsePage(pages[part])
		more := p.rows(part, targets[part])
		if ok && len(more) == 0 {
			others = append(others, fmt.Sprintf("[%[1]s](%[1]s.md) of %[2]s %[3]s", part, p.date, p.result))
		}
		rows = append(rows, more...)
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.class(), b.class()) })
	return rows, others
}

// class returns the place of a row in the summary: before those of higher classes.
func (r Row) class() int {
	switch {
	case r.Target != 0:
		return 1
	case r.Peer != "":
		return 2
	default:
		return 3
	}
}

// rows returns the figures of a page with the targets of its part.
func (p page) rows(part string, targets []figure) (rows []Row) {
	all := slices.Clone(p.figures)
	for _, t := range targets {
		i := slices.IndexFunc(all, func(f figure) bool { return f.name == t.name })
		switch {
		case i < 0:
			all = append(all, t)
		case t.missing:
			all[i].target = t.target
		default:
			all[i] = t
		}
	}
	values := map[string]figure{}
	for _, f := range all {
		values[f.name] = f
	}
	for _, f := range all {
		row := Row{Part: part, Measurement: f.name, Value: f.value, Unit: f.unit, Target: f.target, Higher: f.higher, Status: f.status(),
			Date: p.date, Commit: p.commit, Machine: p.machine, Filesystem: p.filesystem, Busy: p.busy, Command: p.command}
		if i := strings.LastIndex(f.name, over); f.ratio && i >= 0 {
			base := values[f.name[:i]]
			row.Measurement, row.Peer, row.Ratio, row.Value, row.Unit = f.name[:i], f.name[i+len(over):], f.value, base.value, base.unit
		}
		rows = append(rows, row)
	}
	return rows
}

// SummaryPage returns the summary as Markdown. command repeats it; against compares it with that of the last release.
func SummaryPage(command string, rows []Row, others []string, against string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Measured: summary\n%s%s%s\n", beforeCommand, command, afterCommand)
	b.WriteString("The figures of the pages beside this one, each with the date, the commit and the machine of its page. A peer or a limit was\n" +
		"measured in the same run, and a ratio is the figure over its. A target is the most that a figure, or its ratio if it has\n" +
		"one, may be, unless it is the least. [summary.jsonl](summary.jsonl) has the same rows.\n\n")
	b.WriteString(StatusText(rows) + "\n\n| part | measurement | value | peer or limit | ratio | target | | date | commit | machine |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range rows {
		if !r.repeated(rows) {
			b.WriteString(r.markdown())
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, "\nPages without such figures: %s.\n", strings.Join(others, "; "))
	}
	return b.String() + against
}

// StatusText returns how many targets are met, missed and not measured.
func StatusText(rows []Row) string {
	n := map[string]int{}
	for _, r := range rows {
		if r.Target != 0 {
			n[r.Status]++
		}
	}
	return fmt.Sprintf("Targets: %d met, %d missed, %d not measured.", n[metText], n[missedText], n[notMeasuredText])
}

// repeated reports whether the row of a ratio also has this row's value, and this row nothing else.
func (r Row) repeated(rows []Row) bool {
	return r.Peer == "" && r.Target == 0 && slices.ContainsFunc(rows, func(o Row) bool {
		return o.Peer != "" && o.Part == r.Part && o.Measurement == r.Measurement && o.Value == r.Value
	})
}

// number3 returns a number with three digits, or with all before the point, for people: without an exponent.
func number3(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// markdown returns the row of the table.
func (r Row) markdown() string {
	value, ratio, target, unit, status := "", "", "", r.Unit, r.Status
	if r.Value != 0 || r.Peer == "" && r.Status != notMeasuredText {
		value = strings.TrimSpace(number3(r.Value) + " " + r.Unit)
	}
	if r.Peer != "" {
		unit = "times"
		if r.Ratio != 0 {
			ratio = number3(r.Ratio)
		}
	}
	if r.Target != 0 {
		if target = fmt.Sprintf("%.6g %s", r.Target, unit); r.Higher {
			target = "at least " + target
		}
	}
	if status == missedText {
		status = "**" + missedText + "**"
	}
	machine := strings.ReplaceAll(r.Machine, `\|`, "|")
	if r.Busy {
		machine += ", had other work"
	}
	part := r.Part
	if r.Date != "" {
		part = fmt.Sprintf("[%[1]s](%[1]s.md)", part)
	}
	date, _, _ := strings.Cut(r.Date, "T")
	line := "|"
	for _, cell := range []string{part, r.Measurement, value, r.Peer, ratio, target, status, date, r.Commit, machine} {
		line += " " + strings.ReplaceAll(cell, "|", `\|`) + " |"
	}
	return strings.ReplaceAll(line, "  ", " ") + "\n"
}

// figure returns the figure of a row, with its part in the name.
func (r Row) figure() figure {
	f := figure{name: r.Part + ": " + r.Measurement, value: r.Value, higher: r.Higher}
	if r.Peer != "" {
		f.name, f.value, f.ratio = ratioName(f.name, r.Peer), r.Ratio, true
	}
	return f
}

// conditions returns those under which a row was measured.
func (r Row) conditions() conditions { return conditions{r.Command, r.Machine, r.Filesystem, r.Busy} }

// CompareSummaries compares the summary with that of the last release, as Compare does pages: it
// returns what became worse or better by more than a tenth, as Markdown, and how many figures became worse.
func CompareSummaries(before, now []Row) (text string, worse int) {
	if len(before) == 0 {
		return "", 0
	}
	was := map[string]Row{}
	for _, r := range before {
		was[r.figure().name] = r
	}
	var all []change
	apart := 0
	for _, r := range now {
		f := r.figure()
		b, ok := was[f.name]
		if !ok || r.Status == notMeasuredText || b.Status == notMeasuredText {
			continue
		}
		if why, ratios := b.conditions().differ(r.conditions()); why != "" && (!ratios || !f.ratio) {
			apart++
			continue
		}
		all = append(all, changes([]figure{b.figure()}, []figure{f})...)
	}
	slices.SortStableFunc(all, func(a, b change) int { return cmp.Compare(b.worse, a.worse) })
	table, worse := changeTable(all)
	text = "\n## Against the summary of the last release\n" + table
	if apart > 0 {
		text += fmt.Sprintf("Not compared: %d that were measured by other commands, or on other or busy machines and are no ratios.\n", apart)
	}
	return text, worse
}
