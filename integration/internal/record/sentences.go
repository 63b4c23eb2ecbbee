package record

import (
	"regexp"
	"strconv"
	"strings"
)

// sentences are the lines with figures that stand in no table, by the parts that print them.
var sentences = []struct {
	form  *regexp.Regexp
	parse func(p *parser, m []string)
}{
	// suspend
	{regexp.MustCompile(`^(\w+): from the decision to the processor freed: median (\S+), p10 \S+, p90 (\S+);`), parseFreed},
	{regexp.MustCompile(`^(\w+): dump (\S+) MB/s, (\S+) times as long as criu alone; restore (\S+) MB/s, (\S+) times$`), parseDump},
	// simulations
	{regexp.MustCompile(`^\d+ simulations in \S+ s: (\d+) an hour on (\d+) processors; target ([\d,]+): (\w+)$`), parseSimulations},
	{regexp.MustCompile(`simulations; each on average: .* so (\d+) an hour on each processor$`), parseSimulationsOfOne},
	// coordinator, page and profile
	{regexp.MustCompile(`^(.+): ([0-9.]+) times as many placements (.+), median of \d+, `), parsePlacements},
	{regexp.MustCompile(`^(run \d+): ([0-9.]+) times as many (with .+)$`), parsePlacements},
	// limits
	{regexp.MustCompile(`^(?:.*_test\.go:\d+: )?(.*\S)\s+cpu +([0-9.]+)% +reads +([0-9.]+)% +writes +([0-9.]+)% of their limits$`), parseLimits},
	{regexp.MustCompile(`alone ([0-9.]+) MiB/s, beside a hog ([0-9.]+) MiB/s`), parseHog},
}

func parseFreed(p *parser, m []string) {
	p.addSeconds(m[1]+": from the decision to the processor freed, median", m[2])
	p.addSeconds(m[1]+": from the decision to the processor freed, p90", m[3])
}

func parseDump(p *parser, m []string) {
	for i, what := range []string{"dump", "restore"} {
		p.addNumber(figure{name: m[1] + ": " + what, unit: "MB/s", higher: true}, m[2+2*i])
		p.addNumber(figure{name: ratioName(m[1]+": time of the "+what, "criu alone"), unit: "times", ratio: true}, m[3+2*i])
	}
}

// parseSimulations parses the rate of all processors. That of a run in which a simulation failed is none.
func parseSimulations(p *parser, m []string) {
	f := figure{name: "simulated clusters on " + m[2] + " processors", unit: "an hour", higher: true, missing: m[4] == "failed"}
	target, err := strconv.ParseFloat(strings.ReplaceAll(m[3], ",", ""), 64)
	if err != nil {
		return
	}
	f.target = target
	if f.missing {
		m[1] = "0"
	}
	p.addNumber(f, m[1])
}

func parseSimulationsOfOne(p *parser, m []string) {
	p.addNumber(figure{name: "simulated clusters by the CPU time of each processor", unit: "an hour", higher: true}, m[1])
}

// parsePlacements parses the ratio of the placements of runs beside each other. Lines of single
// runs have the same name, so that their median counts.
func parsePlacements(p *parser, m []string) {
	what := "placements"
	if !strings.HasPrefix(m[1], "run ") {
		what += " of " + m[1]
	}
	peer := "those without it"
	if other, ok := strings.CutPrefix(m[3], "as with "); ok {
		peer = "those with " + other
	} else {
		what += " " + m[3]
	}
	p.addNumber(figure{name: ratioName(what, peer), unit: "times", higher: true, ratio: true}, m[2])
}

// parseLimits parses how much of the limits a container got. Only those count that the kind of work
// asks for, which its name says.
func parseLimits(p *parser, m []string) {
	for i, resource := range []string{"cpu", "reads", "writes"} {
		if v, err := strconv.ParseFloat(m[2+i], 64); err == nil && asksFor(m[1], resource) {
			p.add(figure{name: ratioName(m[1]+": "+resource+" granted", "the limit"), value: v / 100, unit: "times", higher: true, ratio: true})
		}
	}
}

// asksFor reports whether the work asks for all that it may have of a resource. Buffered work is writes.
func asksFor(work, resource string) bool {
	return strings.Contains(work, resource) || resource == "writes" && strings.HasPrefix(work, "buffered")
}

func parseHog(p *parser, m []string) {
	alone, err := strconv.ParseFloat(m[1], 64)
	if err != nil || alone == 0 {
		return
	}
	if beside, err := strconv.ParseFloat(m[2], 64); err == nil {
		p.add(figure{name: ratioName("writes of a limited task beside a disk hog", "those of the task alone"), value: beside / alone, unit: "times", higher: true, ratio: true})
	}
}
