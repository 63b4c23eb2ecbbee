// Package integration has the suites and jobs on real machines. Its own test is of the shell
// functions that run them.
package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runParts runs lines of a script after parts.sh in an empty folder and returns its output and
// whether it ended with code 0.
func runParts(t *testing.T, lines string) (string, bool) {
	t.Helper()
	for _, tool := range []string{"bash", "awk", "timeout"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not proved here: that the closing lines of make test name what failed. %v", err)
		}
	}
	functions, err := filepath.Abs("parts.sh")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("bash", "-c", "set -uo pipefail\nout=. budget=600 longest=1m\n. "+functions+"\ntrap summary EXIT\n"+lines)
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "DROVER_SOAK=")
	out, err := c.CombinedOutput()
	return string(out), err == nil
}

// A verbose log of go test: a property, a random test, a subtest, and a test that passed.
const failingLog = `=== RUN   TestGood
    a_test.go:1: seed 5 (RAPID_SEED=5 repeats it)
--- PASS: TestGood (0.00s)
=== RUN   TestRandom
    a_test.go:2: seed 7 (RAPID_SEED=7 repeats it)
    a_test.go:3: wrong
--- FAIL: TestRandom (0.00s)
=== RUN   TestProperty
=== RUN   TestProperty/fifo
    b_test.go:9: [rapid] failed after 3 tests: wrong
        To reproduce, specify -run="TestProperty/fifo" -rapid.failfile="x.fail" (or -rapid.seed=99)
        Failed test output:
--- FAIL: TestProperty (0.00s)
    --- FAIL: TestProperty/fifo (0.00s)
=== RUN   TestPlain
--- FAIL: TestPlain (0.00s)
FAIL
FAIL	example.org/a	0.1s
=== RUN   TestOther
--- FAIL: TestOther (0.00s)
FAIL	example.org/b	0.1s
`

const failingTests = `    TestRandom RAPID_SEED=7 in example.org/a
    TestProperty in example.org/a
    TestProperty/fifo RAPID_SEED=99 in example.org/a
    TestPlain in example.org/a
    TestOther in example.org/b
`

// fakeGo answers for go test: some packages fail, one of them the first time only, and one does not build.
const fakeGo = `go() {
  local p code=0
  for p; do
    case $p in
    *broken) printf 'FAIL\t%s [build failed]\n' "$p"; code=1 ;;
    *bad) printf -- '--- FAIL: TestOther (0.00s)\nFAIL\t%s\t0.1s\n' "$p"; code=1 ;;
    *shaky) if [ -f again ]; then printf 'ok\t%s\t0.1s\n' "$p"; else touch again; printf 'FAIL\t%s\t0.1s\n' "$p"; code=1; fi ;;
    *good) printf 'ok\t%s\t0.1s\n' "$p" ;;
    esac
  done
  return $code
}
`

func writeLog(name string) string { return "cat >" + name + " <<'END'\n" + failingLog + "END\n" }

func TestClosingLines(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		ok     bool
		want   []string
		not    []string
	}{
		"all pass": {
			script: "part good 1 echo '--- PASS: TestA'",
			ok:     true, want: []string{"1 passed, 0 failed, 0 skipped"}, not: []string{"FLAKY", "FAILED"},
		},
		"a part passes only when repeated": {
			script: writeLog("first") + "part good 1 true\npart shaky 1 sh -c '[ -f again ] && exit 0; touch again; cat first; exit 1'",
			ok:     true, want: []string{"FLAKY: shaky passed only when it was repeated; what failed first (./shaky.first.txt):\n" + failingTests}, not: []string{"FLAKY: good", "FAILED"},
		},
		"a part fails twice": {
			script: writeLog("first") + "part bad 1 sh -c 'cat first; exit 1'",
			ok:     false, want: []string{"FAILED: bad\n  ./bad.first.txt:\n" + failingTests + "  ./bad.log:\n" + failingTests}, not: []string{"FLAKY"},
		},
		"a part that is run once": {
			script: writeLog("first") + "once=1 part random 1 sh -c '[ -f again ] && exit 0; touch again; cat first; exit 1'\n[ ! -e random.first.txt ]",
			ok:     false, want: []string{"FAILED: random\n  ./random.log:\n" + failingTests}, not: []string{"FLAKY"},
		},
		"a panic names the test that ran and its seed": {
			script: "part bad 1 printf '=== RUN   TestX\\n    a_test.go:2: seed 8 (RAPID_SEED=8 repeats it)\\npanic: boom\\n'\npart worse 1 sh -c 'cat bad.log; exit 2'",
			ok:     false, want: []string{"TestX panic: boom RAPID_SEED=8"},
		},
		"a package passes only when it is tested again": {
			script: fakeGo + "flaky_units=./flaky\nunit race -race example.org/good example.org/shaky && [ ${#failed[@]} = 0 ]",
			ok:     true, want: []string{"FLAKY: unit tests (race): example.org/shaky passed only when repeated (.)"}, not: []string{"example.org/good"},
		},
		"a package fails twice": {
			script: fakeGo + "unit race -race example.org/good example.org/bad; [ \"${failed[*]}\" = race ]",
			ok:     false, want: []string{"FAILED: race", "TestOther in example.org/bad"}, not: []string{"FLAKY"},
		},
		"a package that does not build is not tested again": {
			script: fakeGo + "unit race -race example.org/broken example.org/bad; [ ! -f race.first.txt ] || echo '== skipped in every part: again'",
			ok:     false, want: []string{"FAILED: race"}, not: []string{"again", "FLAKY"},
		},
		"parts beside others": {
			script: writeLog("first") + "hosts() { part one 1 sh -c '[ -f again ] && exit 0; touch again; cat first; exit 1'; part two 1 sh -c 'cat first; exit 1'; part three 1 echo '--- PASS: TestA'; }\n" +
				"more() { part four 1 sh -c '[ -f more ] && exit 0; touch more; exit 1'; }\nbeside hosts hosts\nbeside more more\npart machine 1 echo '--- PASS: TestB'\njoined",
			ok: false, want: []string{"FLAKY: four passed only when it was repeated", "FLAKY: one passed only when it was repeated", "FAILED: two\n  ./two.first.txt:\n" + failingTests}, not: []string{"FAILED: one", "three", "machine", "beside"},
		},
		"parts beside others pass": {
			script: "hosts() { part one 1 echo '--- PASS: TestA'; }\nbeside one hosts\npart machine 1 echo '--- PASS: TestB'\njoined",
			ok:     true, want: []string{"2 passed, 0 failed, 0 skipped"}, not: []string{"FLAKY", "FAILED"},
		},
		"unit tests count": {
			script: "DROVER_CHECKED=checked\nmkdir checked\n" + strings.ReplaceAll(writeLog("checked/race.log"), "--- FAIL: TestPlain", "--- PASS: TestPlain") + "part good 1 printf '    a_test.go:1: no tool\\n--- SKIP: TestPlain (0.00s)\\n--- PASS: TestX\\n'",
			ok:     true, want: []string{"3 passed, 4 failed, 1 skipped"}, not: []string{"no tool"},
		},
		"no time is left": {
			script: "part first 1 true\nbudget=0\npart late 1 true",
			ok:     false, want: []string{"FAILED: late (no time left)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, ok := runParts(t, c.script)
			if ok != c.ok {
				t.Errorf("ended well: %v", ok)
			}
			_, closing, _ := strings.Cut(out, "== skipped in every part")
			for _, w := range c.want {
				if !strings.Contains(closing, w) {
					t.Errorf("the closing lines lack %q", w)
				}
			}
			for _, w := range c.not {
				if strings.Contains(closing, w) {
					t.Errorf("the closing lines have %q", w)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// The output of unit tests has a line for each package, and what a test that failed printed. The rest is in the log.
func TestResultsOfVerboseTests(t *testing.T) {
	const log = "=== RUN   TestA\n    a.go:1: fine\n--- PASS: TestA (0.00s)\n    --- PASS: TestA/x (0.00s)\nPASS\nok  \tp/a\t0.1s\n?   \tp/n\t[no test files]\n" +
		"=== RUN   TestB\n    b.go:2: wrong\n--- FAIL: TestB (0.00s)\n    --- FAIL: TestB/y (0.00s)\n=== RUN   TestC\n    c.go:1: fine\n--- PASS: TestC (0.00s)\nFAIL\nFAIL\tp/b\t0.1s\n" +
		"# p/c\nc.go:3: undefined\nFAIL\tp/c [build failed]\nFAIL\n"
	const want = "ok  \tp/a\t0.1s\n?   \tp/n\t[no test files]\n    b.go:2: wrong\n--- FAIL: TestB (0.00s)\n    --- FAIL: TestB/y (0.00s)\nFAIL\tp/b\t0.1s\n# p/c\nc.go:3: undefined\nFAIL\tp/c [build failed]\n"
	out, _ := runParts(t, "results <<'END'\n"+log+"END\n")
	if got, _, _ := strings.Cut(out, "== skipped in every part"); got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

// A part that failed shows what each test that failed printed, and of a long text its end.
func TestPrintedByFailedTests(t *testing.T) {
	log := "=== RUN   TestA\n    a.go:1: fine\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n" + strings.Repeat("    b.go:1: early\n", 30) + "    b.go:2: wrong\n--- FAIL: TestB (0.00s)\n" +
		"=== RUN   TestC\n=== RUN   TestC/x\n    c.go:1: bad\n=== NAME  TestC\n    c.go:2: worse\n--- FAIL: TestC (0.00s)\n    --- FAIL: TestC/x (0.00s)\n=== RUN   TestD\n    d.go:1: before\npanic: boom\n"
	want := strings.Repeat("    b.go:1: early\n", 19) + "    b.go:2: wrong\n--- FAIL: TestB (0.00s)\n    c.go:2: worse\n--- FAIL: TestC (0.00s)\n    c.go:1: bad\n    --- FAIL: TestC/x (0.00s)\npanic: boom\n"
	out, _ := runParts(t, "printed /dev/stdin <<'END'\n"+log+"END\n")
	if got, _, _ := strings.Cut(out, "== skipped in every part"); got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

func TestInterruptionEndsWhatRunsBeside(t *testing.T) {
	out, ok := runParts(t, "hosts() { part one 1 sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 50'; }\nbeside one hosts\nuntil [ -e pid ]; do sleep 0.02; done\necho process $(cat pid)\nexit 130")
	if ok || !strings.Contains(out, "FAILED: beside one (interrupted)") {
		t.Errorf("it ended well (%v) or does not name what was interrupted:\n%s", ok, out)
	}
	_, rest, _ := strings.Cut(out, "process ")
	number, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + number + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d runs on", pid)
		}
	}
}
