package node

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/runtime"
)

// How the end of a command counts, and what the user reads.
func TestCommandExit(t *testing.T) {
	spec := &droverv1.TaskSpec{StageName: "s", Command: []string{"prog"}, Demand: &droverv1.Resources{Memory: 64 << 20}}
	for name, c := range map[string]struct {
		exit  taskExit
		cause droverv1.Cause
		text  string
	}{
		"any code":                   {taskExit{code: 3}, droverv1.Cause_CAUSE_EXIT, "exit code 3"},
		"not found":                  {taskExit{code: 127}, droverv1.Cause_CAUSE_EXIT, "a program that it runs was not found (standard error names it)"},
		"not executed":               {taskExit{code: 126}, droverv1.Cause_CAUSE_EXIT, "a program that it runs is there but cannot be executed"},
		"a signal":                   {taskExit{code: 139}, droverv1.Cause_CAUSE_EXIT, "killed by signal 11"},
		"out of memory":              {taskExit{code: 137, oomKills: OOMKills{atLimit: 1}, memoryPeak: 80 << 20, overhead: 16 << 20}, droverv1.Cause_CAUSE_MEMORY, `set memory = "112MiB"`},
		"the machine out of memory":  {taskExit{code: 137, oomKills: OOMKills{outside: 1}, overhead: 16 << 20}, droverv1.Cause_CAUSE_INFRA, "the task itself was within its limit of 80MiB"},
		"lost":                       {taskExit{code: runtime.ExitLost}, droverv1.Cause_CAUSE_INFRA, "nobody saw how it ended"},
		"lost in a shared container": {taskExit{code: runtime.ExitLost, shared: true}, droverv1.Cause_CAUSE_EXIT, "nobody saw how it ended"},
		"a reboot in one":            {taskExit{code: runtime.ExitLost, shared: true, rebooted: true}, droverv1.Cause_CAUSE_REBOOT, "the machine was rebooted"},
		"a reboot":                   {taskExit{code: runtime.ExitLost, rebooted: true}, droverv1.Cause_CAUSE_REBOOT, "the machine was rebooted"},
	} {
		t.Run(name, func(t *testing.T) {
			c.exit.spec = spec
			f := c.exit.ofCommand()
			if f == nil || f.cause != c.cause || !strings.Contains(f.message, c.text) || f.exitCode != int32(c.exit.code) {
				t.Errorf("got %+v", f)
			}
		})
	}
	if f := (&taskExit{spec: spec}).ofCommand(); f != nil {
		t.Errorf("success is %+v", f)
	}
}

// What a task's own processes can bring about counts against the task, and what only others can against the
// infrastructure.
func TestHarnessExit(t *testing.T) {
	missing := error(fs.ErrNotExist)
	ok := &mapreduce.Result{Class: mapreduce.ClassOK}
	internal := &mapreduce.Result{Class: mapreduce.ClassInternal}
	for name, c := range map[string]struct {
		exit taskExit
		f    func(e *taskExit) *failure
		want droverv1.Cause
	}{
		"a result beside another code":    {taskExit{code: 9}, func(e *taskExit) *failure { return e.disagrees(ok) }, droverv1.Cause_CAUSE_EXIT},
		"the same after a reboot":         {taskExit{code: 9, rebooted: true}, func(e *taskExit) *failure { return e.disagrees(ok) }, droverv1.Cause_CAUSE_INFRA},
		"the same out of memory":          {taskExit{code: 9, oomKills: OOMKills{atLimit: 1}}, func(e *taskExit) *failure { return e.disagrees(ok) }, droverv1.Cause_CAUSE_MEMORY},
		"success without a result":        {taskExit{}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_OUTPUT},
		"a result that cannot be read":    {taskExit{code: 2}, func(e *taskExit) *failure { return e.withoutResult(errors.New("bad")) }, droverv1.Cause_CAUSE_OUTPUT},
		"KILL in a container":             {taskExit{code: 137}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_INFRA},
		"KILL without a container":        {taskExit{code: 137, hostPaths: true}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_EXIT},
		"KILL in a shared container":      {taskExit{code: 137, shared: true}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_EXIT},
		"the machine out of memory there": {taskExit{code: 137, shared: true, oomKills: OOMKills{outside: 1}}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_INFRA},
		"an unseen end in a shared one":   {taskExit{code: runtime.ExitLost, shared: true}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_EXIT},
		"an end that nobody saw":          {taskExit{code: runtime.ExitLost}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_INFRA},
		"a reboot in the middle":          {taskExit{code: runtime.ExitLost, rebooted: true}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_REBOOT},
		"TERM in a container":             {taskExit{code: 143}, func(e *taskExit) *failure { return e.withoutResult(missing) }, droverv1.Cause_CAUSE_EXIT},
		"an internal error":               {taskExit{}, func(e *taskExit) *failure { return e.ofHarness(internal) }, droverv1.Cause_CAUSE_EXIT},
		"an internal error and a reboot":  {taskExit{rebooted: true}, func(e *taskExit) *failure { return e.ofHarness(internal) }, droverv1.Cause_CAUSE_INFRA},
		"a program that is not there": {taskExit{}, func(e *taskExit) *failure {
			return e.ofHarness(&mapreduce.Result{Class: mapreduce.ClassUserExit, UserExit: 127})
		}, droverv1.Cause_CAUSE_SPEC},
		"data that no program can read": {taskExit{}, func(e *taskExit) *failure {
			return e.ofHarness(&mapreduce.Result{Class: mapreduce.ClassUserData, Permanent: true})
		}, droverv1.Cause_CAUSE_DATA},
		"a full quota": {taskExit{}, func(e *taskExit) *failure { return e.ofHarness(&mapreduce.Result{Class: mapreduce.ClassQuota}) }, droverv1.Cause_CAUSE_DISK},
	} {
		t.Run(name, func(t *testing.T) {
			c.exit.spec = &droverv1.TaskSpec{StageName: "s", Demand: &droverv1.Resources{Memory: 64 << 20}}
			if f := c.f(&c.exit); f == nil || f.cause != c.want || f.message == "" {
				t.Errorf("got %+v, want %v", f, c.want)
			}
		})
	}
	if f := (&taskExit{}).disagrees(ok); f != nil {
		t.Errorf("a result that agrees: %+v", f)
	}
}
