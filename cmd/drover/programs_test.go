package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/innerbin"
)

// The programs inside of drover are started by its daemons. Whoever starts one by hand, or with what it cannot read, gets an error that says so, and
// no panic; none of them waits for anything then.
func TestInnerProgramsRefuseWhatTheyCannotRead(t *testing.T) {
	dir := t.TempDir()
	paths := map[string]string{}
	for _, name := range []string{"harness", "helper", "logger", "init"} {
		path, err := innerbin.Install(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		paths[name] = path
	}
	spec := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const badSpec = 12 // exit code of the harness: the node does not try again
	for _, c := range []struct {
		program string
		args    []string
		stdin   string
		code    int
		want    string
	}{
		{"helper", nil, "", 2, "drover-helper is started by the node daemon"},
		{"helper", []string{"help"}, "", 2, "drover-helper is started by the node daemon"},
		{"logger", nil, "", 2, "drover-logger is started by containerd's shim"},
		{"logger", []string{"-h"}, "", 2, "drover-logger is started by containerd's shim"},
		{"init", nil, "", 2, "drover-init is started by the node daemon"},
		{"init", []string{"x"}, "", 2, "drover-init is started by the node daemon"},
		{"helper", []string{"helper"}, "", 1, "drover helper: request: EOF"},
		{"helper", []string{"helper"}, `{"x"`, 1, "drover helper: request: "},
		{"logger", []string{"logger"}, "", 1, "drover: logger: want one argument, have 0: containerd's shim calls this, not you"},
		{"logger", []string{"logger", "a", "b"}, "", 1, "drover: logger: want one argument, have 2"},
		{"init", []string{"task-init"}, "", 1, "drover: task-init: want the folder of a socket, have 0 arguments: the node daemon calls this, not you"},
		{"init", []string{"task-init", filepath.Join(dir, "none")}, "", 1, "no such file or directory"},
		{"harness", nil, "", badSpec, "usage: harness SPEC.json (it is started by the node daemon)"},
		{"harness", []string{"a", "b"}, "", badSpec, "usage: harness SPEC.json"},
		{"harness", []string{"none.json"}, "", badSpec, "harness: task spec: open none.json: no such file or directory"},
		{"harness", []string{spec("empty", "")}, "", badSpec, "task spec: EOF"},
		{"harness", []string{spec("null", "null")}, "", badSpec, "task spec: version is 0, this harness knows 1"},
		{"harness", []string{spec("list", "[]")}, "", badSpec, "task spec: json: cannot unmarshal array"},
		{"harness", []string{spec("new", `{"version":99}`)}, "", badSpec, "task spec: version is 99, this harness knows 1"},
		{"harness", []string{spec("unknown", `{"version":1,"x":1}`)}, "", badSpec, `task spec: json: unknown field "x"`},
	} {
		cmd := exec.CommandContext(t.Context(), paths[c.program], c.args...)
		var out bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = strings.NewReader(c.stdin), &out, &out, dir
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "goroutine ") {
			t.Errorf("%s %q: %v, %q", c.program, c.args, err, out.String())
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "core*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
