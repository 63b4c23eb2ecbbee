package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedFileIsNotTheNodesFault damages an uploaded file on the
// coordinator's disk. Its job fails and says so; the node, which cannot get a
// better copy, takes other work; submitting again mends it.
func TestDamagedFileIsNotTheNodesFault(t *testing.T) {
	b := newOperatorBed(t)
	b.start("c")
	script := filepath.Join(b.dir, "tool.sh")
	job := filepath.Join(b.dir, "tool.hcl")
	text := "job \"tool\" {\n  stage \"main\" {\n    file \"tool.sh\" { source = \"" + script + "\" }\n    command = [\"sh\", \"tool.sh\"]\n    tasks = 8\n  }\n}\n"
	for path, content := range map[string]string{script: "echo the tool ran\n", job: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.run("job", "run", "-detach", job)
	stored, err := filepath.Glob(filepath.Join(b.dir, "c", "blobs", "sha256", "*", "*"))
	if err != nil || len(stored) != 1 {
		t.Fatalf("stored files: %v %v", stored, err)
	}
	if err := os.Chmod(stored[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stored[0], []byte("echo the tool rAn\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	startProcessNode(t, filepath.Join(b.dir, "dev"), b.socket)
	b.waitForText("failed", "job", "list", "-all")
	if out := b.run("job", "status", "tool"); !strings.Contains(out, "is damaged") || !strings.Contains(out, "submit the job again") {
		t.Errorf("the job's message:\n%s", out)
	}
	b.waitForText("file.damaged", "events")
	if out := b.run("events"); strings.Contains(out, "node.quarantined") {
		t.Errorf("the node was quarantined for a file's damage:\n%s", out)
	}
	if out := b.run("node", "list"); !strings.Contains(out, " up ") {
		t.Errorf("the node takes no work:\n%s", out)
	}
	b.run("job", "run", job) // asks for the file, sends it, and succeeds
}
