package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackageIsMade makes the Debian package around a stand-in for the program: each
// file that it is to carry has to be where dist/debian/package.sh looks for it.
func TestPackageIsMade(t *testing.T) {
	for _, tool := range []string{"dpkg-deb", "git", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not proved here: that the Debian package can be made: %v", err)
		}
	}
	built, common, out := t.TempDir(), t.TempDir(), t.TempDir()
	for _, path := range []string{
		filepath.Join(built, "drover"), filepath.Join(built, "copyright"),
		filepath.Join(common, "man", "drover.1.gz"),
		filepath.Join(common, "completions", "bash"), filepath.Join(common, "completions", "zsh"),
		filepath.Join(common, "etc", "coordinator.example.hcl"), filepath.Join(common, "etc", "node.example.hcl"),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, "stand-in\n")
	}
	script := filepath.Join("..", "..", "dist", "debian", "package.sh")
	run := exec.Command("bash", script, "amd64", "1.2.3", built, common, out)
	run.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if text, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, text)
	}
	list, err := exec.Command("dpkg-deb", "--contents", filepath.Join(out, "drover_1.2.3_amd64.deb")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"./usr/bin/drover", "./usr/share/man/man1/drover.1.gz", "./etc/drover/node.example.hcl",
		"./usr/lib/systemd/system/drover-coordinator.service", "./usr/lib/systemd/system/drover-node.service", "./usr/lib/systemd/system/drover-tasks.service",
		"./usr/share/doc/drover/install.md", "./usr/share/doc/drover/job-file.md", "./usr/share/doc/drover/examples/hello/hello.hcl",
	} {
		if !strings.Contains(string(list), " "+want+"\n") {
			t.Errorf("the package lacks %s", want)
		}
	}
}
