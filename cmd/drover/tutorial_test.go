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

// TestTutorial follows the parts of the tutorial that need no machines, and guides that do not.
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

// guideFolder is the folder in which a guide works.
var guideFolder = regexp.MustCompile(`/tmp/drover-[a-z]+`)

// scriptBlocks writes run.sh, which stops at the first error and leaves no process.
// The guide's folder becomes the script's, a build is left out, and the program
// under test stands in PATH.
func scriptBlocks(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: blocks FILE SECTION ...")
	}
	doc, err := os.ReadFile(filepath.Join(ts.Getenv("ROOT"), args[0]))
	ts.Check(err)
	text, err := shellBlocks(string(doc), args[1:]...)
	ts.Check(err)
	if !guideFolder.MatchString(text) {
		ts.Fatalf("%s does not contain %s", args[0], guideFolder)
	}
	text = guideFolder.ReplaceAllLiteralString(text, ts.Getenv("WORK"))
	text = strings.NewReplacer("make -s build\n", "", "export PATH=$PWD/bin:$PATH REPO=$PWD\n", "export REPO=$ROOT\n").Replace(text)
	if strings.Contains(text, "make ") || strings.Contains(text, "PATH=") {
		ts.Fatalf("%s builds, or runs another program than the one under test", args[0])
	}
	text = "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\nhead() { command head \"$@\"; cat >/dev/null; } # so that nobody writes to a head that has ended\n" + text
	ts.Check(os.WriteFile(ts.MkAbs("run.sh"), []byte(text), 0o644))
}
