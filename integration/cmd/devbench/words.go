package main

import (
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"strings"
)

// counter is a program that counts the words of the large text without Drover.
type counter struct {
	name   string // as a peer
	note   string // its version and settings, or why it is absent
	use    func() (resourceUse, error)
	result string // pattern of the files with the counts
}

// measureBuiltin counts the words of the large text by the built-in programs, in turn with other
// programs and with the limits of the machine. The other programs must have the same counts.
func (b *bench) measureBuiltin() ([]figure, error) {
	const large = "large.txt"
	size := largeSize / int64(b.divide)
	limits := b.limits(size)
	works := []func() (resourceUse, error){func() (resourceUse, error) {
		return b.wordCount(large, `stage "map" { kind = "map"  builtin = ["wordcount"]  resources { memory = "256MiB" } }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["sum"]  combiner = true  resources { memory = "256MiB" } }`)
	}}
	counters := []counter{b.awk(large), b.hadoop(large)}
	for _, c := range counters {
		if c.use != nil {
			works = append(works, c.use)
		}
	}
	all, err := b.alternate(append(works, uses(limits)...)...)
	if err != nil {
		return nil, err
	}
	ours := all[0]
	what := fmt.Sprintf("built-in word count of %s, ", mb(size))
	rows := []figure{
		{what + "wall", medianBy(ours, wallOf), "s", fmt.Sprintf("%s, %d cores", spreadText(ours), runtime.NumCPU())},
		{what + "CPU", medianBy(ours, cpuOf), "s", ""},
		{what + "rate", float64(size) / 1e6 / medianBy(ours, cpuOf), "MB/s per core", "input bytes per second of CPU time"},
	}
	for _, c := range counters {
		wall, cpu := figure{what + "wall over " + c.name, math.NaN(), "times", c.note}, figure{what + "CPU over " + c.name, math.NaN(), "times", c.note}
		if c.use != nil {
			if err := b.compareCounts(c); err != nil {
				return nil, err
			}
			p := pairResult{ours, all[1]}
			all = append(all[:1], all[2:]...)
			wall.value, wall.note = p.ratio(wallOf), p.ratioSpread(wallOf)+fmt.Sprintf("; %s took %.1f s", c.note, medianBy(p.theirs, wallOf))
			cpu.value, cpu.note = p.ratio(cpuOf), p.ratioSpread(cpuOf)
		}
		rows = append(rows, wall, cpu)
	}
	return append(rows, rateOverLimits(what, size, ours, limits, all[1:])...), nil
}

// awkProgram counts words. The white space that separates them is that of Drover's program, of which
// awk alone knows a part.
const awkProgram = `BEGIN { FS = "[ \t\v\f\r]+" } { for (i = 1; i <= NF; i++) if ($i != "") n[$i]++ } END { for (w in n) print w "\t" n[w] }`

// simpleAwkProgram is the same for text that has only spaces, which is faster.
const simpleAwkProgram = `{ for (i = 1; i <= NF; i++) n[$i]++ } END { for (w in n) print w "\t" n[w] }`

// awk counts the words of a file by the awk of this machine.
func (b *bench) awk(input string) counter {
	c := counter{name: "awk", result: "awk.txt"}
	if _, err := exec.LookPath("awk"); err != nil {
		c.note = "no awk here"
		return c
	}
	program := simpleAwkProgram
	if b.ownText {
		program = awkProgram
	}
	c.note = awkVersion() + ", LC_ALL=C"
	c.use = func() (resourceUse, error) {
		return b.shell(fmt.Sprintf("exec awk '%s' %s > %s", program, input, c.result))
	}
	return c
}

// awkVersion returns name and version of the awk of this machine, as mawk and gawk tell them.
func awkVersion() string {
	out, err := exec.Command("awk", "-W", "version").CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	line, _, _ = strings.Cut(line, ",")
	if line = strings.TrimSpace(line); err != nil || line == "" {
		return "awk of unknown version"
	}
	return line
}

// compareCounts returns an error if the counts of a program are not those of Drover.
func (b *bench) compareCounts(c counter) error {
	if _, err := b.shell(fmt.Sprintf("sort out/part-* > counts.txt && sort %s | cmp - counts.txt", c.result)); err != nil {
		return fmt.Errorf("the counts of Drover and of %s differ: %w", c.name, err)
	}
	return nil
}
