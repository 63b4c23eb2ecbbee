package hcl

import (
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
		"a typo":                 {stage(`"tsks": 3`), `j.json:5: stages[0].tsks: there is no such field; did you mean "tasks"?`},
		"an unknown field":       {stage(`"resources": {"bandwidth": 1}`), `j.json:5: stages[0].resources.bandwidth: there is no such field; expected are cpu, io, memory`},
		"two problems":           {"{\n\"nam\": \"j\",\n\"stags\": []\n}", "j.json:2: nam: there is no such field; did you mean \"name\"?\nj.json:3: stags: there is no such field; did you mean \"stages\"?"},
		"a wrong type":           {stage(`"tasks": "3"`), `j.json:5: stages[0].tasks is string: want a whole number`},
		"a list":                 {"[]", `j.json:1: the job is array: want an object`},
		"a field twice":          {"{\n\"name\": \"j\",\n\"name\": \"k\"}", `j.json:3: name stands twice; keep one`},
		"a tenant not filled in": {stage(`"tasks": 1}], "tenant": "", "x": [{"y": 1`), `j.json:5: tenant is empty; give a value or leave it out`},
		"no time, otherwise":     {stage(`"time_limit": "0h0m"`), `j.json:5: stages[0].time_limit is zero; give a time such as 30m, or leave it out for no limit`},
		"no bound":               {"{\"name\": \"j\",\n\"runtime_bound\": \"0s\"}", `j.json:2: runtime_bound is zero; give how long one task of the job may run, such as 30m, or leave it out`},
		"no bits":                {stage(`"files": [{"name": "a", "source": "a", "mode": 0}]`), `j.json:5: stages[0].files[0].mode is zero; give permission bits such as "0644"`},
		"a brace more":           {stage(`"tasks": 1`) + "}", `j.json: job JSON: data after the job; send one job at a time`},
		"a problem of validity":  {stage(`"tasks": -1`), `j.json:5: stage["s"].tasks: -1 tasks; give 1 to 1000000`},
		"a field that lacks":     {"{\n\"name\": \"j\",\n\"stages\": [\n{\"name\": \"s\", \"kind\": \"group\"}]}", `j.json:4: stage["s"].command: the stage has no program; write command = ["program", "argument"]`},
		"zero cores":             {stage(`"resources": {"cpu": 0, "memory": 1000000000}`), `j.json:5: stages[0].resources.cpu is zero; give at least 10m, or leave it out for 1 core`},
		"no time":                {stage(`"time_limit": "0s"`), `j.json:5: stages[0].time_limit is zero; give a time such as 30m, or leave it out for no limit`},
		"no JSON":                {"{\n\"name\": \"j\",\n}", "j.json:3: not valid JSON: invalid character '}'"},
		"half of it":             {"{\n\"name\": \"j\",\n", "j.json:2: not valid JSON: unexpected EOF"},
		"very deep":              {strings.Repeat("[", 100000), "more than 64 levels deep"},
	} {
		_, err := Parse("j.json", []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
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
