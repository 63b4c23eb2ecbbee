package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFullDiskIsNamed fills the disk of a coordinator for real, a small tmpfs in
// a mount namespace of its own: it refuses jobs before that, and ends with the
// cause. With room again it starts and has every job that it accepted.
func TestFullDiskIsNamed(t *testing.T) {
	if out, err := exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "x", os.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("not proved here: that a coordinator with a full disk names it and loses no accepted job; no mount namespace: %v %s", err, out)
	}
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, job := filepath.Join(dir, "data"), filepath.Join(dir, "j.hcl")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(job, []byte("job \"j\" {\n  stage \"main\" { command = [\"true\"] }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "drover")); err != nil {
		t.Fatal(err)
	}
	// Everything happens in one shell, since the mount is gone with it. The second
	// coordinator has no reserve, so that the log itself meets the end of the disk.
	script := fmt.Sprintf(`set -u; cd %q; PATH=$PWD:$PATH; export DROVER_ADDRESS=unix://$PWD/s
mount -t tmpfs -o size=4m x data
ready() { i=0; until drover status >/dev/null 2>&1; do i=$((i+1)); [ $i -lt 300 ] || exit 9; sleep 0.05; done; }
drover coordinator -data data -socket s -disk-reserve 1MiB 2>log1 & C=$!
ready
drover job run -detach -name kept j.hcl || exit 2
head -c 8m /dev/zero > data/fill
echo "free: $(drover status | grep -c '^warning: .*nearly full')"
drover job run -detach -name refused j.hcl; echo "submit: $?"
kill $C; wait $C
: > data/fill
drover coordinator -data data -socket s -disk-reserve 0 2>log2 & C=$!
ready
head -c 8m /dev/zero > data/fill
i=0; while kill -0 $C 2>/dev/null && [ $i -lt 300 ]; do i=$((i+1)); drover job run -detach -name j$i j.hcl >/dev/null 2>>errors && echo j$i >> accepted; done
wait $C; echo "end: $?"
: > data/fill
drover coordinator -data data -socket s 2>log3 & C=$!
ready
drover job list -json > jobs
kill $C; wait $C
`, dir)
	cmd := exec.Command("unshare", "-rm", "--pid", "--fork", "--kill-child", "sh", "-c", script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	timer := time.AfterFunc(3*stepLimit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, want := range []string{"free: 1", "nearly full", "submit: 3", "end: 4"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	last := ""
	for _, l := range strings.Split(read("log2"), "\n") {
		if strings.HasPrefix(l, "drover: ") {
			last = l
		}
	}
	if !strings.Contains(last, "the log cannot be written") || !strings.Contains(last, "no space left on device") {
		t.Errorf("it ended with %q; its log:\n%s", last, read("log2"))
	}
	for _, name := range append(strings.Fields(read("accepted")), "kept") {
		if !strings.Contains(read("jobs"), `"`+name+`"`) {
			t.Errorf("job %s was accepted and is lost", name)
		}
	}
}
