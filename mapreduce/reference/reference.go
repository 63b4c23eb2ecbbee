// Package reference is the obvious implementation of MapReduce: everything in
// memory, every step a plain loop, no code shared with the harness. Tests
// compare the harness with it; it is not for real data.
package reference

import (
	"fmt"
	"math/big"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Job names the built-in programs of a job; Pattern is for grep.
type Job struct {
	Mapper, Combiner, Reducer string
	Pattern                   string
	Reduces                   int // 0: map-only

	KeyFields       int      // of a line; 0: 1
	PartitionFields int      // of a key; 0: all
	PartitionKeys   []string // instead of the hash
	KeyOrder        []string // how each field is compared; none: by the bytes of the key
}

// Run executes a job on the texts of its map tasks and returns the output of
// each reducer, or of each mapper for a map-only job.
func Run(j Job, texts []string) ([]string, error) {
	var mapped [][]string
	for _, text := range texts {
		lines, err := mapLines(j, Lines(text))
		if err != nil {
			return nil, err
		}
		mapped = append(mapped, lines)
	}
	if j.Reduces == 0 {
		var out []string
		for _, lines := range mapped {
			out = append(out, join(lines))
		}
		return out, nil
	}
	var out []string
	for r := range j.Reduces {
		var mine []string
		for _, lines := range mapped {
			for _, line := range lines {
				if j.partition(j.keyOf(line)) == r {
					mine = append(mine, line)
				}
			}
		}
		sort.SliceStable(mine, func(a, b int) bool { return j.compare(j.keyOf(mine[a]), j.keyOf(mine[b])) < 0 })
		lines, err := reduceLines(j, mine)
		if err != nil {
			return nil, err
		}
		out = append(out, join(lines))
	}
	return out, nil
}

// Lines returns the lines of a text without their newlines.
func Lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// keyOf returns the first fields of a line.
func (j Job) keyOf(line string) string { return firstFields(line, max(j.KeyFields, 1)) }

func firstFields(line string, n int) string {
	fields := strings.Split(line, "\t")
	return strings.Join(fields[:min(n, len(fields))], "\t")
}

// valueOf returns the text after the key and its tab.
func (j Job) valueOf(line string) string {
	return strings.TrimPrefix(strings.TrimPrefix(line, j.keyOf(line)), "\t")
}

// compare compares two keys.
func (j Job) compare(a, b string) int {
	for _, e := range j.KeyOrder {
		if e != "text" {
			return CompareKeys(j.KeyOrder, a, b)
		}
	}
	return strings.Compare(a, b)
}

func (j Job) partition(key string) int {
	if len(j.PartitionKeys) > 0 {
		r := 0
		for _, s := range j.PartitionKeys {
			if j.compare(s, key) <= 0 {
				r++
			}
		}
		return r
	}
	if j.PartitionFields > 0 {
		key = firstFields(key, j.PartitionFields)
	}
	return hashPartition(key, j.Reduces)
}

// hashPartition is Hadoop's HashPartitioner by definition: the hash in integers of
// any size, cut to 32 bits at the end.
func hashPartition(key string, n int) int {
	h := big.NewInt(1)
	for i := range len(key) {
		h.Mul(h, big.NewInt(31))
		h.Add(h, big.NewInt(int64(int8(key[i]))))
	}
	h.And(h, big.NewInt(1<<31-1)) // And on a negative number uses its two's complement
	return int(h.Int64() % int64(n))
}

func join(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	return b.String()
}

func mapLines(j Job, lines []string) ([]string, error) {
	switch j.Mapper {
	case "identity", "sort":
		// sort makes the whole line the key. Key order and partition are right only for lines
		// without tabs; callers use no others.
		return lines, nil
	case "grep":
		re, err := regexp.Compile(j.Pattern)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, l := range lines {
			if re.MatchString(l) {
				out = append(out, l)
			}
		}
		return out, nil
	case "wordcount":
		var out []string
		for _, l := range lines {
			for _, w := range strings.FieldsFunc(l, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) }) {
				out = append(out, w+"\t1")
			}
		}
		return out, nil
	default:
		return nil, fmt.Errorf("mapper %q", j.Mapper)
	}
}

func reduceLines(j Job, lines []string) ([]string, error) {
	reducer := j.Reducer
	if reducer == "identity" || reducer == "sort" {
		return lines, nil
	}
	var out []string
	for i := 0; i < len(lines); {
		key, total, n := j.keyOf(lines[i]), int64(0), int64(0)
		for ; i < len(lines) && j.keyOf(lines[i]) == key; i++ {
			n++
			if reducer == "count" {
				continue
			}
			v, err := strconv.ParseInt(j.valueOf(lines[i]), 10, 64)
			if err != nil {
				return nil, err
			}
			total += v
		}
		switch reducer {
		case "sum", "wordcount":
			out = append(out, fmt.Sprintf("%s\t%d", key, total))
		case "count":
			out = append(out, fmt.Sprintf("%s\t%d", key, n))
		default:
			return nil, fmt.Errorf("reducer %q", reducer)
		}
	}
	return out, nil
}
