package record

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// tolerance is the relative change that counts as noise.
const tolerance = 0.10

// change is a figure that both pages have.
type change struct {
	name        string
	before, now float64
	worse       float64 // relative: 0.2 is a fifth worse, negative is better
}

// changes returns the figures of both, the worst change first. Figures that are zero or missing in
// one of them have no relative change.
func changes(before, now []figure) (out []change) {
	was := map[string]float64{}
	for _, f := range before {
		was[f.name] = f.value
	}
	for _, f := range now {
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

// conditions are those under which figures were measured.
type conditions struct {
	command    string
	machine    string
	filesystem string // "" on older pages
	busy       bool   // the machine had other work
}

// differ says what forbids to compare two measurements, "" if nothing does, and whether their
// ratios may be compared nevertheless: both sides of a ratio had the same machine at the same time.
func (c conditions) differ(now conditions) (why string, ratios bool) {
	switch {
	case c.command != now.command:
		return fmt.Sprintf("it was measured by `%s`", c.command), false
	case c.filesystem != now.filesystem && c.filesystem != "":
		return "its temporary files were on another file system", false
	case c.machine != now.machine:
		return "it was measured on another machine", true
	case c.busy || now.busy:
		return "the machine had other work during one of them", true
	default:
		return "", true
	}
}

// ratiosOf returns the ratios among figures.
func ratiosOf(all []figure) []figure {
	return slices.DeleteFunc(slices.Clone(all), func(f figure) bool { return !f.ratio })
}

// Compare compares a measurement with an earlier page of the same part. It returns the figures that
// changed by more than a tenth, as Markdown, and the number of figures that became worse. Of pages
// of different machines, and of busy ones, it compares ratios alone, of pages of different commands
// or file systems, or without known figures, nothing; the text then says so.
func Compare(page string, m Measurement) (text string, worse int) {
	before, ok := parsePage(page)
	if !ok {
		return "", 0
	}
	now := figures(m.Output)
	heading := fmt.Sprintf("\n## Against the page before (commit %s)\n", before.commit)
	why, ratios := before.conditions.differ(conditions{m.Command, m.Machine.row(), m.Machine.filesystem, m.Machine.busy()})
	all := changes(before.figures, now)
	if why != "" {
		all = changes(ratiosOf(before.figures), ratiosOf(now))
	}
	switch {
	case why != "" && (!ratios || len(all) == 0):
		return heading + "Not compared: " + why + ".\n", 0
	case len(now) == 0:
		return heading + "Not compared: the tables of this part have no figures that are known to be better or worse.\n", 0
	case len(all) == 0:
		return heading + "Not compared: no figure has the same name and settings.\n", 0
	case why != "":
		heading += "Ratios alone: " + why + ".\n\n"
	}
	table, worse := changeTable(all)
	return heading + table, worse
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
