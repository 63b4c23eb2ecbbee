package hcl

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/jobspec"
)

// place is where attributes stand: a job file with %s there, and the path of that place in canonical JSON.
type place struct{ file, path string }

const mapReduce = "job \"j\" {\n input { path = \"file:///in\"\n %s }\n output { path = \"file:///out\"\n %s }\n stage \"m\" { kind = \"map\" builtin = [\"identity\"]\n %s }\n stage \"r\" { kind = \"reduce\" builtin = [\"sum\"]\n %s }\n}\n"

var places = map[string]place{
	"job":       {"job \"j\" {\n %s\n stage \"run\" { command = [\"true\"] }\n}\n", ""},
	"deadline":  {"job \"j\" {\n deadline = \"2030-01-01T00:00:00Z\"\n %s\n stage \"run\" { command = [\"true\"] }\n}\n", ""},
	"stage":     {"job \"j\" {\n stage \"run\" { command = [\"true\"]\n %s }\n stage \"first\" { command = [\"true\"] }\n}\n", "stages.0"},
	"resources": {"job \"j\" {\n stage \"run\" { command = [\"true\"]\n resources {\n %s } }\n}\n", "stages.0.resources"},
	"file":      {"job \"j\" {\n stage \"run\" { command = [\"true\"]\n file \"a\" { source = \"x\"\n %s } }\n}\n", "stages.0.files.0"},
	"secret":    {"job \"j\" {\n stage \"run\" { command = [\"true\"]\n secret \"A\" { secret = \"x\"\n %s } }\n}\n", "stages.0.secrets.0"},
	"input":     {fmt.Sprintf(mapReduce, "%s", "", "", ""), "input"},
	"output":    {fmt.Sprintf(mapReduce, "", "%s", "", ""), "output"},
	"map":       {fmt.Sprintf(mapReduce, "", "", "%s", ""), "stages.0"},
	"reduce":    {fmt.Sprintf(mapReduce, "", "", "", "%s"), "stages.1"},
}

// field returns the canonical JSON of a field of a job, "-" for none.
func field(t *testing.T, j *jobspec.Job, path string) string {
	t.Helper()
	b, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "."), ".") {
		var list []json.RawMessage
		fields := map[string]json.RawMessage{}
		if json.Unmarshal(b, &list) == nil {
			b = list[name[0]-'0']
		} else if json.Unmarshal(b, &fields) == nil {
			b = fields[name]
		}
	}
	if b == nil {
		return "-"
	}
	return string(b)
}

// testdata/attributes.txt has the default and the limits of each attribute of the reference, and what its
// values mean.
func TestAttributes(t *testing.T) {
	script, err := os.ReadFile("testdata/attributes.txt")
	if err != nil {
		t.Fatal(err)
	}
	var at place
	var name, jsonName string
	seen := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSpace(string(script)), "\n") {
		where := fmt.Sprintf("attributes.txt:%d: %s %s", i+1, name, line)
		value, isValue := strings.CutPrefix(line, "+ ")
		bad, isBad := strings.CutPrefix(line, "- ")
		switch {
		case strings.HasPrefix(line, "#"):
		case isValue:
			value, want, _ := strings.Cut(value, " => ")
			if got := field(t, mustParse(t, where, at.with(name, value)), at.path+"."+jsonName); got != want {
				t.Errorf("%s: means %s", where, got)
			}
		case isBad:
			if _, err := Parse("j.hcl", []byte(at.with(name, bad))); err == nil {
				t.Errorf("%s: is accepted", where)
			} else if strings.Contains(err.Error(), "is not expected here") || strings.Contains(err.Error(), "Attribute redefined") {
				t.Errorf("%s: is not read: %v", where, err)
			}
		default:
			words := strings.SplitN(line, " ", 3)
			at, name = places[words[0]], words[1]
			jsonName = name
			if name == "secret" {
				jsonName = "ref"
			}
			seen[name] = true
			if got := field(t, mustParse(t, where, fmt.Sprintf(at.file, "")), at.path+"."+jsonName); got != words[2] && name != "path" && name != "ref" {
				t.Errorf("attributes.txt:%d: %s of a %s is %s when it is left out, want %s", i+1, name, words[0], got, words[2])
			}
		}
	}
	if d := cmp.Diff(referenceAttributes(t), slices.Collect(slices.Values(slices.Sorted(maps.Keys(seen))))); d != "" {
		t.Errorf("attributes of job-file.md, and of this test:\n%s", d)
	}
}

// with returns the job file with an attribute. One that the file has already is replaced.
func (p place) with(name, value string) string {
	file := p.file
	before, _, _ := strings.Cut(file, "%s")
	if i := strings.LastIndex(before, "{"); strings.Contains(before[i:], " "+name+" = ") && name != "kind" {
		given := regexp.MustCompile(" " + name + ` = (\[[^]]*\]|"[^"]*")`).FindString(before[i:])
		file = before[:i] + strings.Replace(before[i:], given, "", 1) + file[len(before):]
	}
	if name == "ref" {
		file = strings.Replace(file, `secret = "x"`, "", 1)
	}
	return fmt.Sprintf(file, name+" = "+value)
}

func mustParse(t *testing.T, where, text string) *jobspec.Job {
	t.Helper()
	j, err := Parse("j.hcl", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	return j
}

// referenceAttributes returns the names in the first column of the tables of job-file.md that describe the
// blocks of a job file.
func referenceAttributes(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/reference/job-file.md")
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(string(b), "## job \"NAME\"")
	doc, _, _ = strings.Cut(doc, "## What a task sees")
	names := map[string]bool{}
	for line := range strings.SplitSeq(doc, "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(line[2:], " |")
		for name := range strings.SplitSeq(first, ", ") {
			names[strings.Trim(name, "`")] = true
		}
	}
	names["source"], names["mode"] = true, true // of a file: in its text
	return slices.Sorted(maps.Keys(names))
}
