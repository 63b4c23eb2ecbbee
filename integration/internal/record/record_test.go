package record

import (
	"strings"
	"testing"
	"time"
)

func TestPage(t *testing.T) {
	m := Measurement{
		Part: "dev", Command: "integration/bench.sh dev", At: time.Date(2026, 11, 23, 7, 0, 0, 0, time.FixedZone("", 3600)), Commit: "abc123-dirty",
		Machine: Machine{cpu: "A | B", cores: 2, memoryMB: 4096, kernel: "6.1", goVersion: "go1.26", load: 0.5, Others: UnknownOthers, filesystem: "ext4"}, Output: "one  1.2 s\n```\n\n",
	}
	want := "# Measured: dev\n\nWritten by `integration/bench.sh dev`; do not edit.\n\n| | |\n| --- | --- |\n" +
		"| date | 2026-11-23T06:00:00Z |\n| commit | abc123-dirty |\n| machine | A \\| B, 2 cores, 4096 MiB |\n" +
		"| kernel, Go | 6.1, go1.26 |\n| load | 0.5 at the end |\n| temporary files | ext4 |\n| result | completed |\n\n```\none  1.2 s\n'''\n```\n"
	if got := Page(m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	m.Machine.Others = 0.04
	if row := "| load | 0.5 at the end; other work had 0.04 processors meanwhile |\n"; !strings.Contains(Page(m), row) {
		t.Errorf("no row %q in\n%s", row, Page(m))
	}
	m.Failed, m.Machine.Others = true, 0.3
	got := Page(m)
	for _, part := range []string{"missed a target", "had other work"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is missing:\n%s", part, got)
		}
	}
}

func TestThisMachine(t *testing.T) {
	m, err := ThisMachine()
	if err != nil {
		t.Fatal(err)
	}
	if m.cpu == "" || m.filesystem == "" || m.cores < 1 || m.memoryMB < 1 || m.kernel == "" || !strings.HasPrefix(m.goVersion, "go") && !strings.Contains(m.goVersion, "devel") || m.load < 0 {
		t.Errorf("%+v", m)
	}
	if got, err := modelName(strings.NewReader("processor\t: 0\nmodel name\t: X 2000\n")); got != "X 2000" || err != nil {
		t.Errorf("model %q, %v", got, err)
	}
}
