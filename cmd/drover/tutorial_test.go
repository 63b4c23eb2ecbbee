package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var shellBlockRE = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// shellBlocks returns the shell blocks of a document's sections, in order.
func shellBlocks(doc string, sections ...string) (string, error) {
	var b strings.Builder
	for _, s := range sections {
		_, text, ok := strings.Cut("\n"+doc, "\n## "+s+"\n")
		if !ok {
			return "", fmt.Errorf("there is no section %q", s)
		}
		text, _, _ = strings.Cut(text, "\n## ")
		blocks := shellBlockRE.FindAllStringSubmatch(text+"\n", -1)
		if len(blocks) == 0 {
			return "", fmt.Errorf("section %q has no shell block", s)
		}
		for _, m := range blocks {
			b.WriteString(m[1])
		}
	}
	return b.String(), nil
}

// TestTutorial follows the parts of the tutorial that need no machines.
//
//	blocks FILE SECTION ...   write the shell blocks of a document's sections to run.sh
func TestTutorial(t *testing.T) {
	root, err := filepath.Abs(docsRoot)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/tutorial",
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars, "ROOT="+root, "LC_ALL=C", "PATH="+withoutShims(e.Getenv("PATH")), "GORACE="+raceExitOption)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"blocks": scriptBlocks},
		Condition: func(cond string) (bool, error) {
			if name, ok := strings.CutPrefix(cond, "has:"); ok {
				_, err := exec.LookPath(name)
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	})
}

// scriptBlocks writes run.sh, which stops at the first error and leaves no process.
// The tutorial's folder becomes the script's, the build is left out, and the program
// under test stands in PATH.
func scriptBlocks(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: blocks FILE SECTION ...")
	}
	doc, err := os.ReadFile(filepath.Join(ts.Getenv("ROOT"), args[0]))
	ts.Check(err)
	text, err := shellBlocks(string(doc), args[1:]...)
	ts.Check(err)
	for old, now := range map[string]string{
		"make -s build\n":                        "",
		"export PATH=$PWD/bin:$PATH REPO=$PWD\n": "export REPO=$ROOT\n",
		"/tmp/drover-tutorial":                   ts.Getenv("WORK"),
	} {
		if !strings.Contains(text, old) {
			ts.Fatalf("%s does not contain %q", args[0], old)
		}
		text = strings.ReplaceAll(text, old, now)
	}
	text = "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + text
	ts.Check(os.WriteFile(ts.MkAbs("run.sh"), []byte(text), 0o644))
}
