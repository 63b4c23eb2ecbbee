package coordinator

import (
	"encoding/json"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/jobspec"
)

// `job run` and `job plan` say that a container without an image has no programs, before an attempt fails of it. Where a
// node runs plain processes, it may have them.
func TestProgramsWithoutAnImageAreWarnedOf(t *testing.T) {
	b := newTestCluster(t, nil)
	info := coordtest.Info("n1")
	info.Driver = driverOfContainers
	b.addNode(info, coordtest.Succeed)
	b.waitForNodes()
	check := func(name, want string) {
		t.Helper()
		text, err := json.Marshal(groupJob(name, 1))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)}))
		if err != nil {
			t.Fatal(err)
		}
		run, err := b.client.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)}))
		if err != nil {
			t.Fatal(err)
		}
		for what, warnings := range map[string][]string{"plan": plan.Msg.Warnings, "run": run.Msg.Warnings} {
			if got := strings.Join(warnings, "\n"); strings.Contains(got, "no image") != (want != "") || !strings.Contains(got, want) {
				t.Errorf("%s of %s: warnings %q, want %q", what, name, got, want)
			}
		}
	}
	check("in-a-container", `stage "main" runs "true" and the job has no image`)
	b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitUntil("both nodes are up", func() bool { return b.nodeIsUp("n2") })
	check("on-a-machine", "")
}

func TestStagesThatNeedAnImage(t *testing.T) {
	tool := []jobspec.File{{Name: "bin/tool"}}
	for name, c := range map[string]struct {
		spec           jobspec.Job
		stage, program string
	}{
		"a program":                   {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Builtin: []string{"sum"}}, {Name: "b", Command: []string{"sh"}}}}, "b", "sh"},
		"a combiner":                  {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Builtin: []string{"sum"}, CombineCommand: []string{"awk"}}}}, "a", "awk"},
		"a file, run by a program":    {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Files: tool, Command: []string{"sh", "bin/tool"}}}}, "a", "sh"},
		"a file below the folder":     {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Files: tool, Command: []string{"./bin/tool"}}}}, "", ""},
		"a file by its whole path":    {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Files: tool, Command: []string{"/task/bin/tool"}}}}, "", ""},
		"a built-in":                  {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Builtin: []string{"sum"}}}}, "", ""},
		"a program, and there is one": {jobspec.Job{Image: &jobspec.Image{}, Stages: []jobspec.Stage{{Name: "a", Command: []string{"sh"}}}}, "", ""},
		"a file of the other stage":   {jobspec.Job{Stages: []jobspec.Stage{{Name: "a", Files: tool, Builtin: []string{"sum"}}, {Name: "b", Command: []string{"./bin/tool"}}}}, "b", "./bin/tool"},
	} {
		if stage, program, ok := lacksImage(&c.spec); stage != c.stage || program != c.program || ok != (c.stage != "") {
			t.Errorf("%s: stage %q, program %q, %v", name, stage, program, ok)
		}
	}
}
