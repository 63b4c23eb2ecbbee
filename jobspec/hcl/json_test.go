package hcl

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/jobspec"
)

// Each problem of a JSON job file names the line, the field and a cure.
func TestJSONProblems(t *testing.T) {
	stage := func(fields string) string {
		return "{\n \"name\": \"j\",\n \"stages\": [\n  {\"name\": \"s\", \"kind\": \"group\", \"command\": [\"true\"],\n   " + fields + "}\n ]\n}"
	}
	for name, c := range map[string]struct{ src, want string }{
		"a typo":                 {stage(`"tsks": 3`), `j.json:5:4: stages[0].tsks: there is no such field; did you mean "tasks"?`},
		"an unknown field":       {stage(`"resources": {"bandwidth": 1}`), `j.json:5:18: stages[0].resources.bandwidth: there is no such field; expected are cpu, io, memory`},
		"two problems":           {"{\n\"nam\": \"j\",\n\"stags\": []\n}", "j.json:2:1: nam: there is no such field; did you mean \"name\"?\nj.json:3:1: stags: there is no such field; did you mean \"stages\"?"},
		"a wrong type":           {stage(`"tasks": "3"`), `j.json:5:13: stages[0].tasks is string; want a whole number`},
		"a list":                 {"[]", `j.json:1:1: the job is array; want an object`},
		"a field twice":          {"{\n\"name\": \"j\",\n\"name\": \"k\"}", `j.json:3:1: name stands twice; keep one`},
		"a tenant not filled in": {stage(`"tasks": 1}], "tenant": "", "x": [{"y": 1`), `j.json:5:28: tenant is empty; give a value or leave it out`},
		"no time, otherwise":     {stage(`"time_limit": "0h0m"`), `j.json:5:18: stages[0].time_limit is zero; give a time such as 30m, or leave it out for no limit`},
		"no bound":               {"{\"name\": \"j\",\n\"runtime_bound\": \"0s\"}", `j.json:2:18: runtime_bound is zero; give how long one task of the job may run, such as 30m, or leave it out`},
		"no bits":                {stage(`"files": [{"name": "a", "source": "a", "mode": 0}]`), `j.json:5:51: stages[0].files[0].mode is zero; give permission bits such as "0644"`},
		"a brace more":           {stage(`"tasks": 1`) + "}", `j.json: job JSON: data after the job; send one job at a time`},
		"a problem of validity":  {stage(`"tasks": -1`), `j.json:5:13: stage["s"].tasks: -1 tasks; give 1 to 1000000`},
		"a field that lacks":     {"{\n\"name\": \"j\",\n\"stages\": [\n{\"name\": \"s\", \"kind\": \"group\"}]}", `j.json:4:1: stage["s"].command: the stage has no program; write command = ["program", "argument"]`},
		"zero cores":             {stage(`"resources": {"cpu": 0, "memory": 1000000000}`), `j.json:5:25: stages[0].resources.cpu is zero; give at least 10m, or leave it out for 1 core`},
		"no time":                {stage(`"time_limit": "0s"`), `j.json:5:18: stages[0].time_limit is zero; give a time such as 30m, or leave it out for no limit`},
		"no JSON":                {"{\n\"name\": \"j\",\n}", "j.json:3:1: not valid JSON: invalid character '}'"},
		"half of it":             {"{\n\"name\": \"j\",\n", "j.json:2:13: not valid JSON: unexpected EOF"},
		"very deep":              {strings.Repeat("[", 100000), "more than 64 levels deep"},
	} {
		_, err := Parse("j.json", []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
}

// All problems of a JSON job file are told at once, in the order of the file, without those that come of another one.
func TestJSONProblemsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		src  string
		want []string
	}{
		"names, zeros and limits": {`{"name": "a b", "prioritty": "high", "stages": [
 {"name": "é", "comand": ["x"], "tasks": 0, "attempts": 1000, "after": ["lost"]},
 {"name": "m", "kind": "map", "command": ["m"], "files": [{"name": "f", "sorce": "x"}, {"name": "/f", "source": "x"}]}]}`, []string{
			`1:10: name: "a b" is not a valid name; use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first`,
			`1:17: prioritty: there is no such field; did you mean "priority"?`,
			`2:11: stage["é"].name: "é" is not a valid name; use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first`,
			`2:16: stages[0].comand: there is no such field; did you mean "command"?`,
			`2:42: stages[0].tasks is zero; give at least 1, or leave it out for 1 task; if the mappers write the result, leave out the reduce stage`,
			`2:57: stage["é"].attempts: 1000 attempts; give 1 to 100`,
			`2:72: stage["é"].after: no stage is called "lost"; choose one of m, é`,
			`3:24: stage["m"].kind: a map stage needs an input; add input { path = "hdfs:///…" } to the job`,
			`3:73: stages[1].files[0].sorce: there is no such field; did you mean "source"?`,
			`3:88: stage["m"].file["/f"]: "/f" is not a valid name for a file of the task; give a relative path below the task's folder, such as data/words.txt`}},
		"a name that may mean any field": {`{"name": "j", "steps": [{"name": "s"}]}`, []string{
			`1:15: steps: there is no such field; expected are `}},
		"a list with another name": {`{"name": "j", "stags": [{"name": "s"}]}`, []string{`1:15: stags: there is no such field; did you mean "stages"?`}},
		"a type, and what is found with it": {`{"nam": "j", "stages": [{"name": "s", "tasks": "2"}]}`, []string{
			`1:2: nam: there is no such field; did you mean "name"?`, `1:48: stages[0].tasks is string; want a whole number`}},
	} {
		_, err := Parse("j.json", []byte(c.src))
		if err == nil {
			t.Fatalf("%s: no problem", name)
		}
		got := strings.Split(err.Error(), "\n")
		if !slices.EqualFunc(got, c.want, func(line, begin string) bool { return strings.HasPrefix(line, "j.json:"+begin) }) {
			t.Errorf("%s: %v\nwant %s", name, err, strings.Join(c.want, "\n"))
		}
	}
	_, err := Parse("j.json", []byte(`{"name": "j", `+strings.Repeat(`"a": 1, `, 100)+`"stages": []}`))
	if err == nil || strings.Count(err.Error(), "j.json:1:") != maxShown || !strings.HasSuffix(err.Error(), "\nand 180 more problems") {
		t.Errorf("of many: %v", err)
	}
}

// What a job in JSON leaves out has the default that job-file.md gives for it, and a name in a map is no field.
func TestJSONJobIsRead(t *testing.T) {
	j, err := Parse("j.json", []byte(`{"name":"j","env":{"tasks":"0","x":""},"meta":{"cpu":"0","tenant":"","runtime_bound":"0s"},"deadline":"2030-01-01T01:00:00+01:00",
		"stages":[{"name":"s","command":["true"],"env":{"disk":"0","mode":"0"},"max_parallel":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	want := &jobspec.Job{Version: 1, Name: "j", Tenant: "default", Priority: "low", KeepFailed: 1, Deadline: &deadline, OnMiss: "continue", Env: map[string]string{"tasks": "0", "x": ""}, Meta: map[string]string{"cpu": "0", "tenant": "", "runtime_bound": "0s"},
		Stages: []jobspec.Stage{{Name: "s", Kind: "group", Command: []string{"true"}, Tasks: 1, Attempts: 4, Disk: 1 << 30, Resources: jobspec.Resources{CPU: 1000, Memory: 256 << 20, IO: 10 << 20}, Env: map[string]string{"disk": "0", "mode": "0"}}}}
	if d := cmp.Diff(want, j); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"name":"j","stages":[{"name":"s","kind":"group","command":["true"]}]}`))
	f.Add([]byte(`{"stages":[{}],"deadline":"2030-01-01T00:00:00Z"}`))
	fuzztest.Run(f, func(t *testing.T, src []byte) {
		j, err := Parse("j.json", src)
		if (j == nil) == (err == nil) {
			t.Fatalf("%v, %v", j, err)
		}
	})
}
