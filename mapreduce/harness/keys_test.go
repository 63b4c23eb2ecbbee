package harness

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/mapreduce"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// testdata/keys.txt has jobs of commands whose keys have several fields or ranges. A case has its
// settings, then the inputs of its map tasks after lines "map", then the expected input of each
// reducer after a line "reduce I". A tab is written as "|".
func TestKeysOfCommands(t *testing.T) {
	const file = "testdata/keys.txt"
	script, err := os.ReadFile(file)
	check(t, err)
	cases := strings.Split("\n"+string(script), "\n=== ")
	out := strings.TrimPrefix(cases[0], "\n")
	for _, c := range cases[1:] {
		title, body, _ := strings.Cut(c, "\n")
		input, want, ok := strings.Cut(body+"\n", "\nreduce 0\n")
		if !ok {
			t.Fatalf("case %q has no reducer", title)
		}
		want = "reduce 0\n" + strings.TrimRight(want, "\n") + "\n"
		var got string
		t.Run(title, func(t *testing.T) {
			got = strings.TrimRight(runKeys(t, strings.Split("\n"+input+"\n", "\nmap\n")), "\n") + "\n"
			if d := cmp.Diff(want, got); d != "" && !*update {
				t.Errorf("(-want +got, -update rewrites it)\n%s", d)
			}
		})
		out += "\n=== " + title + "\n" + input + "\n" + strings.TrimSuffix(got, "\n")
	}
	if *update {
		check(t, os.WriteFile(file, []byte(out+"\n"), 0o644))
	}
}

// runKeys runs a job of commands, with settings and the inputs of its map tasks, and returns what
// its reducers read.
func runKeys(t *testing.T, parts []string) string {
	h := newTestJob(t, t.TempDir())
	cat := mapreduce.Program{Argv: []string{"cat"}}
	var keys mapreduce.Keys
	var combiner *mapreduce.Program
	reduces := 1
	for line := range strings.SplitSeq(strings.Trim(parts[0], "\n"), "\n") {
		name, value, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(value)
		switch name {
		case "":
			err = nil
		case "reduces":
			reduces = n
		case "fields":
			keys.Fields = n
		case "order":
			keys.Order, err = strings.Split(value, ", "), nil
		case "partition-fields":
			keys.PartitionFields = n
		case "partition-keys":
			keys.PartitionKeys, err = strings.Split(strings.ReplaceAll(value, "|", "\t"), " "), nil
		case "combiner":
			combiner, err = &mapreduce.Program{Argv: []string{"sh", "-c", value}}, nil
		default:
			t.Fatalf("setting %q", line)
		}
		check(t, err)
	}
	var results []*mapreduce.Result
	var specs []mapreduce.TaskSpec
	for i, text := range parts[1:] {
		s := h.mapSpec(i, cat, reduces)
		s.Keys, s.Combiner = keys, combiner
		h.writeInput(&s, strings.ReplaceAll(strings.TrimSuffix(text, "\n")+"\n", "|", "\t"))
		results, specs = append(results, h.runOK(s)), append(specs, s)
	}
	var out strings.Builder
	for p := range reduces {
		s := h.reduceSpec(p, cat, h.shuffle(p, results, specs))
		s.Keys = mapreduce.Keys{Fields: keys.Fields, Order: keys.Order}
		fmt.Fprintf(&out, "reduce %d\n%s", p, strings.ReplaceAll(h.output(s, h.runOK(s)), "\t", "|"))
	}
	return out.String()
}
