package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A warning of the JVM before the first answer is no end, and an end says how the JVM ended.
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
			h := &hdfs{cmd: exec.Command("sh", "-c", c.script), lines: make(chan string, 16), staleAnswers: 1}
			out, err := h.cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := h.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go h.readLines(out)
			err = h.awaitReady(t.Context(), log)
			h.stop()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
