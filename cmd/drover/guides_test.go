package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var guideBlockRE = regexp.MustCompile("(?ms)^```(sh|diff)\n(.*?)^```$")

// guideLimit bounds one block of a guide: tests of a package, built anew in a copy.
const guideLimit = 8 * time.Minute

// Each guide in docs/develop that begins with add- is followed to the letter in a copy of the repository:
// its shell blocks run, its diffs apply.
func TestGuides(t *testing.T) {
	if testing.Short() {
		t.Skip("not proved here: that the guides in docs/develop work as written; it copies and builds the repository, run it without -short")
	}
	guides, err := filepath.Glob(filepath.Join(docsRoot, "docs", "develop", "add-*.md"))
	if err != nil || len(guides) < 3 {
		t.Fatalf("%d guides, %v", len(guides), err)
	}
	for _, g := range guides {
		t.Run(strings.TrimSuffix(filepath.Base(g), ".md"), func(t *testing.T) {
			text, err := os.ReadFile(g)
			if err != nil {
				t.Fatal(err)
			}
			blocks := guideBlockRE.FindAllStringSubmatch(string(text), -1)
			if len(blocks) < 3 {
				t.Fatalf("only %d blocks", len(blocks))
			}
			for _, tool := range []string{"git", "protoc"} {
				if _, err := exec.LookPath(tool); err != nil && (tool == "git" || strings.Contains(string(text), tool)) {
					t.Skipf("not proved here: that this guide works as written; %s is not installed", tool)
				}
			}
			dir := copyRepository(t)
			for _, b := range blocks {
				followBlock(t, dir, b[1], b[2])
			}
		})
	}
}

func followBlock(t *testing.T, dir, kind, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), guideLimit)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-eo", "pipefail", "-c", text)
	if kind == "diff" {
		c = exec.CommandContext(ctx, "git", "apply", "--recount", "-C1", "-")
		c.Stdin = strings.NewReader(text)
	}
	c.Dir, c.WaitDelay = dir, 10*time.Second
	// The flags of `make build`: with -trimpath the build cache serves all copies. git must
	// not find another repository.
	c.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, text, out)
	}
}

// copyRepository copies the working tree, without hidden files, results and caches.
func copyRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(docsRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "out" {
			continue
		}
		from, to := filepath.Join(docsRoot, e.Name()), filepath.Join(dir, e.Name())
		if e.IsDir() {
			err = os.CopyFS(to, os.DirFS(from))
		} else {
			var b []byte
			if b, err = os.ReadFile(from); err == nil {
				err = os.WriteFile(to, b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
