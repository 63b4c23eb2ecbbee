package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/integration/internal/control"
)

// A warning of the JVM before the first answer does not end the wait. If the JVM ends, the error
// says how.
func TestHDFSIsReadyWhenItSaysSo(t *testing.T) {
	log := filepath.Join(t.TempDir(), "hdfs.log")
	if err := os.WriteFile(log, []byte("the log\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ script, want string }{
		"at once":         {"echo ok ready", ""},
		"after a warning": {"echo '[warning][cds] an archive'; echo ok ready", ""},
		"killed":          {"echo a warning; kill -9 $$", `(signal: killed, having said ["a warning"]); the end of ` + log + ":\nthe log"},
		"ended":           {"exit 3", "(exit status 3, having said"},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := startJVM([]string{"sh", "-c", c.script}, filepath.Dir(log), log)
			if err != nil {
				t.Fatal(err)
			}
			err = j.awaitReady(t.Context(), log)
			j.stop()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A daemon that was killed refuses commands until it is started, then runs in a new process.
func TestKilledDaemonStartsAgain(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{dir: dir, log: filepath.Join(dir, "hdfs.log"),
		argv: []string{"sh", "-c", `echo ok ready; while read -r line; do echo "ok $line"; done`}}
	if err := d.launch(); err != nil {
		t.Fatal(err)
	}
	defer func() { d.running().stop() }()
	if err := d.awaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := d.running()
	do := func(op control.Op, want string, wantErr error) {
		t.Helper()
		got, err := d.handle(t.Context(), op, "2")
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%v: %q, %v; want %q, %v", op, got, err, want, wantErr)
		}
	}
	do(control.StartDataNode, "start-datanode\t2", nil) // the JVM still runs, so it starts the daemon inside
	do(control.StopDataNode, "stop-datanode\t2", nil)
	do(control.KillDataNode, "", nil)
	if err := first.cmd.ProcessState; err == nil || err.String() != "signal: killed" {
		t.Errorf("its process: %v", err)
	}
	do(control.KillDataNode, "", errKilled)
	do(control.StopDataNode, "", errKilled)
	if live, err := (&hdfs{nameNode: d}).live(t.Context()); live != "0 down" || err != nil {
		t.Errorf("a killed NameNode: %q, %v", live, err)
	}
	do(control.StartDataNode, "", nil)
	do(control.StopDataNode, "stop-datanode\t2", nil)
	if d.running().cmd.Process.Pid == first.cmd.Process.Pid {
		t.Error("the process is the same")
	}
}

func TestUnknownDataNodeIsRefused(t *testing.T) {
	h := &hdfs{dataNodes: []*daemon{{}}}
	for _, n := range []int{0, 2} {
		if _, err := h.handle(t.Context(), control.Request{Op: control.KillDataNode, N: n}); err == nil || !strings.Contains(err.Error(), "from 1 to 1") {
			t.Errorf("DataNode %d: %v", n, err)
		}
	}
}
