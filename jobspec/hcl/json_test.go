package hcl

import (
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// Each problem of a JSON job file names the line, the field and a cure.
func TestJSONProblems(t *testing.T) {
	stage := func(fields string) string {
		return "{\n \"name\": \"j\",\n \"stages\": [\n  {\"name\": \"s\", \"kind\": \"group\", \"command\": [\"true\"],\n   " + fields + "}\n ]\n}"
	}
	for name, c := range map[string]struct{ src, want string }{
		"a typo":                {stage(`"tsks": 3`), `j.json:5: stages[0].tsks: there is no such field; did you mean "tasks"?`},
		"an unknown field":      {stage(`"resources": {"bandwidth": 1}`), `j.json:5: stages[0].resources.bandwidth: there is no such field; expected are cpu, io, memory`},
		"two problems":          {"{\n\"nam\": \"j\",\n\"stags\": []\n}", "j.json:2: nam: there is no such field; did you mean \"name\"?\nj.json:3: stags: there is no such field; did you mean \"stages\"?"},
		"a wrong type":          {stage(`"tasks": "3"`), `j.json:5: stages.tasks is string: want a whole number`},
		"a problem of validity": {stage(`"tasks": -1`), `j.json:5: stage["s"].tasks: -1 tasks; give 1 to 1000000`},
		"a field that lacks":    {"{\n\"name\": \"j\",\n\"stages\": [\n{\"name\": \"s\", \"kind\": \"group\"}]}", `j.json:4: stage["s"].command: the stage has no program; write command = ["program", "argument"]`},
		"zero cores":            {stage(`"resources": {"cpu": 0, "memory": 1000000000}`), `j.json:5: stages[0].resources.cpu is zero; give at least 10m, or leave it out for 1 core`},
		"no time":               {stage(`"time_limit": "0s"`), `j.json:5: stages[0].time_limit is zero; give a time such as 30m, or leave it out for no limit`},
		"no JSON":               {"{\n\"name\": \"j\",\n}", "j.json:3: not valid JSON: invalid character '}'"},
		"half of it":            {"{\n\"name\": \"j\",\n", "j.json:2: not valid JSON: unexpected EOF"},
		"very deep":             {strings.Repeat("[", 100000), "more than 64 levels deep"},
	} {
		_, err := Parse("j.json", []byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
}

func TestJSONJobIsRead(t *testing.T) {
	j, err := Parse("j.json", []byte(`{"name":"j","env":{"tasks":"0","x":""},"meta":{"cpu":"0"},"stages":[{"name":"s","kind":"group","command":["true"],"env":{"disk":"0"},"max_parallel":0}]}`))
	if err != nil || j.Stages[0].Tasks != 1 || j.Stages[0].Attempts != 4 || j.KeepFailed != 0 {
		t.Errorf("%+v, %v", j, err)
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
