package record

import "strings"

// page is a page of docs/measured that was written before.
type page struct {
	conditions
	date, commit, result string
	output               string
	figures              []figure
}

// parsePage returns what a page says, and false if the text is no such page.
func parsePage(text string) (p page, ok bool) {
	head, output, ok := strings.Cut(text, "\n```\n")
	p.output, _, _ = strings.Cut(output, "\n```\n")
	p.commit = pageRow(head, "commit")
	if !ok || p.commit == "" {
		return page{}, false
	}
	p.date, p.result = pageRow(head, "date"), pageRow(head, "result")
	p.conditions = conditions{pageCommand(head), pageRow(head, "machine"), pageRow(head, filesystemRow), strings.Contains(pageRow(head, "load"), busyNote)}
	p.figures = figures(p.output)
	return p, true
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
