package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce"
)

func shellProgram(script string) mapreduce.Program {
	return mapreduce.Program{Argv: []string{"sh", "-c", script}}
}

// bigInput exceeds the capacity of all pipes, so that a program that does not
// read would block a harness that only writes.
var bigInput = strings.Repeat("some words in a line\n", 400_000)

// wantPermanent matches the errors that every other attempt would have too.
var wantPermanent = regexp.MustCompile("not found|cannot be started|longer than|not valid|larger than|SequenceFile|whole number|no tab|64 bits")

func TestFaultyMappers(t *testing.T) {
	for name, c := range map[string]struct {
		program   mapreduce.Program
		input     string
		reduces   int
		change    func(*mapreduce.TaskSpec)
		want      mapreduce.ExitClass
		wantError string
		wantExit  int
		wantOut   int64 // records
	}{
		"ends with a status":         {shellProgram("cat >/dev/null; exit 7"), "a\n", 1, nil, mapreduce.ClassUserExit, "exit status 7", 7, 0},
		"runs what is not there":     {shellProgram("no-such-program"), "a\n", 1, nil, mapreduce.ClassUserExit, "exit status 127: a program that it runs was", 127, 0},
		"runs what is no program":    {shellProgram("/dev/null"), "a\n", 1, nil, mapreduce.ClassUserExit, "exit status 126: a program that it runs is there but cannot be executed (standard error names it)", 126, 0},
		"ends at once with a status": {shellProgram("exit 3"), bigInput, 1, nil, mapreduce.ClassUserExit, "exit status 3", 3, 0},
		"fails and names its split": {shellProgram("cat >/dev/null; exit 7"), "a\n", 1, func(s *mapreduce.TaskSpec) {
			s.Input.Pieces[0] = mapreduce.Piece{Path: "file:///in/a", Offset: 5, Length: 2, Codec: mapreduce.CodecNone}
		}, mapreduce.ClassUserExit, "exit status 7; its input: bytes 5 to 7 of file:///in/a", 7, 0},
		"fails map-only and names its split": {shellProgram("cat >/dev/null; exit 7"), "a\n", 0, func(s *mapreduce.TaskSpec) {
			s.Input.Pieces[0] = mapreduce.Piece{Path: "file:///in/a", Offset: 5, Length: 2, Codec: mapreduce.CodecNone}
		}, mapreduce.ClassUserExit, "exit status 7; its input: bytes 5 to 7 of file:///in/a", 7, 0},
		"is ended by a signal":               {shellProgram("kill -9 $$"), bigInput, 1, nil, mapreduce.ClassUserExit, "signal 9", -1, 0},
		"is not there":                       {mapreduce.Program{Argv: []string{"no-such-program"}}, "a\n", 1, nil, mapreduce.ClassUserExit, "not found", 127, 0},
		"is not executable":                  {mapreduce.Program{Argv: []string{"/etc/passwd"}}, "a\n", 1, nil, mapreduce.ClassUserExit, "cannot be started", 126, 0},
		"stops reading early, like head":     {shellProgram("head -n 3"), bigInput, 2, nil, mapreduce.ClassOK, "", 0, 3},
		"reads nothing at all":               {shellProgram("exec <&-; echo a"), bigInput, 2, nil, mapreduce.ClassOK, "", 0, 1},
		"map-only and stops reading early":   {shellProgram("head -n 3"), bigInput, 0, nil, mapreduce.ClassOK, "", 0, 3},
		"writes binary without tabs":         {shellProgram("cat >/dev/null; head -c 100000 /dev/urandom | tr -d '\\n'; echo"), "a\n", 2, nil, mapreduce.ClassOK, "", 0, 1},
		"writes a line without end":          {shellProgram("cat >/dev/null; head -c 300000 /dev/zero; sleep 60"), "a\n", 2, func(s *mapreduce.TaskSpec) { s.MaxLine = 200_000 }, mapreduce.ClassUserData, "line longer than 200000 bytes, the most that this task's memory allows", -1, 0},
		"writes a last line without newline": {shellProgram("cat >/dev/null; printf 'a\\tb\\nc'"), "a\n", 2, nil, mapreduce.ClassOK, "", 0, 2},
		"map-only without a last newline":    {shellProgram("cat >/dev/null; printf 'a\\nb'"), "a\n", 0, nil, mapreduce.ClassOK, "", 0, 2},
		"writes and then fails":              {shellProgram("cat; exit 1"), bigInput, 2, nil, mapreduce.ClassUserExit, "exit status 1", 1, 0},
		"leaves a child behind":              {shellProgram("sleep 1000 >/dev/null 2>&1 & cat"), "a\nb\n", 1, nil, mapreduce.ClassOK, "", 0, 2},
		"has a combiner that fails":          {shellProgram("cat"), "a\nb\n", 1, func(s *mapreduce.TaskSpec) { c := shellProgram("cat; exit 9"); s.Combiner = &c }, mapreduce.ClassUserExit, "the combiner: program sh ended with exit status 9", 9, 0},
		"sums a non-number":                  {shellProgram("cat"), "a\tx\n", 1, func(s *mapreduce.TaskSpec) { s.Combiner = &mapreduce.Program{Builtin: "sum"} }, mapreduce.ClassUserData, "not a whole number", 0, 0},
		"sums a line without a tab":          {shellProgram("cat"), "a 1\n", 1, func(s *mapreduce.TaskSpec) { s.Combiner = &mapreduce.Program{Builtin: "sum"} }, mapreduce.ClassUserData, `the mapper's line "a 1" has no tab`, 0, 0},
		"sums over 64 bits":                  {shellProgram("cat"), "a\t9223372036854775807\na\t1\n", 1, func(s *mapreduce.TaskSpec) { s.Combiner = &mapreduce.Program{Builtin: "sum"} }, mapreduce.ClassUserData, "64 bits", 0, 0},
		"gets a damaged gzip file":           {shellProgram("cat"), "this is not gzip", 1, func(s *mapreduce.TaskSpec) { s.Input.Pieces[0].Codec = mapreduce.CodecGzip }, mapreduce.ClassUserData, "not valid gzip", -2, 0},
		"gets a damaged bzip2 file":          {shellProgram("cat"), "this is not bzip2", 1, func(s *mapreduce.TaskSpec) { s.Input.Pieces[0].Codec = mapreduce.CodecBzip2 }, mapreduce.ClassUserData, "not valid bzip2", -2, 0},
		"gets a damaged zstd file":           {shellProgram("cat"), "this is not zstd", 1, func(s *mapreduce.TaskSpec) { s.Input.Pieces[0].Codec = mapreduce.CodecZstd }, mapreduce.ClassUserData, "not valid zstd", -2, 0},
		"gets a zstd file of a wide window":  {shellProgram("cat"), "\x28\xb5\x2f\xfd\x00\x88" + "\x01\x00\x00", 1, func(s *mapreduce.TaskSpec) { s.Input.Pieces[0].Codec = mapreduce.CodecZstd }, mapreduce.ClassUserData, "larger than 32 MiB", -2, 0},
		"gets a damaged deflate file":        {shellProgram("cat"), "this is not zlib", 1, func(s *mapreduce.TaskSpec) { s.Input.Pieces[0].Codec = mapreduce.CodecDeflate }, mapreduce.ClassUserData, "not valid deflate", -2, 0},
		"gets a SequenceFile":                {shellProgram("cat"), "SEQ\x06\x19org.apache.hadoop.io.Text", 1, nil, mapreduce.ClassUserData, "is a Hadoop SequenceFile, and a mapper reads lines of text", -2, 0},
		"gets text that begins with SEQ":     {shellProgram("cat"), "SEQ\tUENCE\n", 1, nil, mapreduce.ClassOK, "", 0, 1},
		"gets three bytes":                   {shellProgram("cat"), "SE\n", 1, nil, mapreduce.ClassOK, "", 0, 1},
		"gets no folder for its output":      {shellProgram("cat"), "a\n", 1, func(s *mapreduce.TaskSpec) { s.MapOutput.Data = "/no/such/folder/x" }, mapreduce.ClassIO, "no such file", 0, 0},
		"reads a long line as a built-in":    {mapreduce.Program{Builtin: "identity"}, strings.Repeat("x", 300_000), 1, func(s *mapreduce.TaskSpec) { s.MaxLine = 200_000 }, mapreduce.ClassUserData, "input file: a line is longer than 200000 bytes", -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newTestJob(t, t.TempDir())
			s := j.mapSpec(0, c.program, c.reduces)
			if c.change != nil {
				c.change(&s)
			}
			j.writeInput(&s, c.input)
			r := j.run(s)
			if r.Class != c.want || !strings.Contains(r.Error, c.wantError) {
				t.Errorf("class %s, error %q, want %s, %q", r.Class, r.Error, c.want, c.wantError)
			}
			if permanent := wantPermanent.MatchString(c.wantError); r.Permanent != permanent {
				t.Errorf("permanent is %t, want %t (%s)", r.Permanent, permanent, r.Error)
			}
			if c.wantExit != -2 && r.UserExit != c.wantExit {
				t.Errorf("exit status %d, want %d", r.UserExit, c.wantExit)
			}
			if r.Class == mapreduce.ClassOK && r.Final.Records != c.wantOut {
				t.Errorf("%d records out, want %d", r.Final.Records, c.wantOut)
			}
			if r.Class != mapreduce.ClassOK {
				for _, o := range []string{j.path("m0.data"), j.path("m0.index"), j.path("m0.out")} {
					if _, err := os.Stat(o); err == nil {
						t.Errorf("the failed task left %s", o)
					}
				}
			}
		})
	}
}

// For a split that packs many files, the message says how far the program got.
func TestFailedMapperNamesTheFileOfAPackedSplit(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	pieces := []mapreduce.Piece{{Path: "file:///in/a", Length: 2, Codec: mapreduce.CodecNone}, {Path: "file:///in/b", Codec: mapreduce.CodecNone}, {Path: "file:///in/c", Codec: mapreduce.CodecNone}}
	s := j.mapSpec(0, shellProgram("read a; read b; exit 7"), 1, pieces...)
	j.writeInput(&s, "a\n", bigInput, "c\n")
	want := "exit status 7; its input: bytes 0 to 2 of file:///in/a and 2 more pieces; it had been given 2 of all, the last of file:///in/b"
	if r := j.run(s); r.Class != mapreduce.ClassUserExit || !strings.Contains(r.Error, want) {
		t.Errorf("class %s, error %q, want %q", r.Class, r.Error, want)
	}
	s = j.mapSpec(1, mapreduce.Program{Builtin: "identity"}, 1, pieces...)
	s.MaxLine = 1 << 16
	j.writeInput(&s, "a\n", strings.Repeat("x", 1<<20), "c\n")
	if r := j.run(s); r.Class != mapreduce.ClassUserData || !strings.Contains(r.Error, "input file:///in/b: a line is longer than 65536 bytes") {
		t.Errorf("class %s, error %q", r.Class, r.Error)
	}
}

// A program that cannot be started is the most common mistake in a new job: the message says what
// to do.
func TestStartErrorsNameTheCure(t *testing.T) {
	for name, c := range map[string]struct {
		file string // content of prog in the working folder; empty: none
		mode os.FileMode
		argv string
		want string
	}{
		"no such file":                  {"", 0, "./prog", `./prog cannot be started: the task's folder has no such file: add file "prog" { source = "prog" } to the stage`},
		"no such file elsewhere":        {"", 0, "/no/such/prog", "/no/such/prog cannot be started: there is no such file: use an image that has it"},
		"not executable":                {"#!/bin/sh\n", 0o644, "./prog", `./prog cannot be started: it is not executable: chmod +x the file before the job is submitted, write mode = "0755" in its file block`},
		"not executable, without a dot": {"#!/bin/sh\n", 0o644, "prog", "prog cannot be started: it is not executable"},
		"no such interpreter":           {"#!/no/such/python\nprint(1)\n", 0o755, "./prog", `the interpreter of its first line "#!/no/such/python" is not there`},
		"lines of Windows":              {"#!/bin/sh\r\necho\r\n", 0o755, "./prog", `its first line "#!/bin/sh" ends with a carriage return`},
		"no first line":                 {"print(1)\n", 0o755, "./prog", "neither a program for this machine nor a script whose first line names an interpreter"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newTestJob(t, t.TempDir())
			s := j.mapSpec(0, mapreduce.Program{Argv: []string{c.argv}}, 1)
			if c.file != "" {
				prog := filepath.Join(s.WorkDir, "prog")
				check(t, os.WriteFile(prog, []byte(c.file), 0o600))
				check(t, os.Chmod(prog, c.mode))
			}
			j.writeInput(&s, "a\n")
			r := j.run(s)
			if r.Class != mapreduce.ClassUserExit || !r.Permanent || r.UserExit != 126 || !strings.Contains(r.Error, c.want) {
				t.Errorf("class %s, permanent %t, exit status %d, error %q, want one with %q", r.Class, r.Permanent, r.UserExit, r.Error, c.want)
			}
		})
	}
}

func TestFaultyInput(t *testing.T) {
	for name, c := range map[string]struct {
		helper    func(w *mapreduce.GrowingWriter, path string) error
		wantError string
	}{
		"the helper gives up": {func(w *mapreduce.GrowingWriter, _ string) error {
			fmt.Fprintln(w, "a line")
			return w.Fail("block 7 of /f has no replica left")
		}, "block 7 of /f has no replica left"},
		"nothing comes": {func(w *mapreduce.GrowingWriter, _ string) error { return nil }, "stalled"},
		"it ends too early": {func(w *mapreduce.GrowingWriter, _ string) error { return w.Done() },
			"done after 0 of 1 pieces"},
		"the file is shorter than its journal says": {func(w *mapreduce.GrowingWriter, path string) error {
			fmt.Fprintln(w, "a line")
			if err := w.EndPiece(); err != nil {
				return err
			}
			return os.Truncate(path, 3)
		}, "ends at 3, its journal says 7"},
		"the journal is garbage": {func(w *mapreduce.GrowingWriter, path string) error {
			return os.WriteFile(path+mapreduce.JournalSuffix, []byte("garbage\n"), 0o600)
		}, "journal"},
	} {
		for _, prog := range []mapreduce.Program{shellProgram("cat"), {Builtin: "identity"}} {
			t.Run(name+" to "+firstNonEmpty(prog.Builtin, "a command"), func(t *testing.T) {
				t.Parallel()
				j := newTestJob(t, t.TempDir())
				s := j.mapSpec(0, prog, 1)
				s.StallMS = 50
				w, err := mapreduce.NewGrowingWriter(s.Input.File)
				check(t, err)
				defer w.Close()
				check(t, c.helper(w, s.Input.File))
				r := j.run(s)
				if r.Class != mapreduce.ClassInput || !strings.Contains(r.Error, c.wantError) {
					t.Errorf("class %s, error %q, want %q", r.Class, r.Error, c.wantError)
				}
			})
		}
	}
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// The mapper sees the first lines before the last ones exist: the helper writes
// the next line only after the mapper has written the previous one.
func TestMapperFollowsGrowingInput(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	seen := j.path("work/seen")
	s := j.mapSpec(0, shellProgram(`while read line; do echo "$line" >> seen; echo "$line"; done`), 0, mapreduce.Piece{Path: "a", Codec: mapreduce.CodecNone})
	helper := make(chan error, 1)
	go func() {
		helper <- func() error {
			w, err := mapreduce.NewGrowingWriter(s.Input.File)
			if err != nil {
				return err
			}
			defer w.Close()
			for i := range 5 {
				fmt.Fprintln(w, "line", i)
				if err := pollUntil(func() bool {
					b, _ := os.ReadFile(seen)
					return strings.Count(string(b), "\n") == i+1
				}); err != nil {
					return fmt.Errorf("line %d: %w", i, err)
				}
			}
			return errors.Join(w.EndPiece(), w.Done())
		}()
	}()
	r := j.runOK(s)
	check(t, <-helper)
	if got := j.output(s, r); got != "line 0\nline 1\nline 2\nline 3\nline 4\n" {
		t.Errorf("got %q", got)
	}
}

func pollUntil(done func() bool) error {
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			return errors.New("not within 20 s")
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// When the harness is stopped, the program gets SIGTERM, then SIGKILL, and the
// result records it.
func TestStopKillsTheProgram(t *testing.T) {
	for name, script := range map[string]string{
		"a program that obeys":      `echo $$ > pid; exec sleep 1000`,
		"a program that does not":   `trap '' TERM; echo $$ > pid; while :; do sleep 1000; done`,
		"a program that ends badly": `trap 'exit 5' TERM; echo $$ > pid; while :; do sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newTestJob(t, t.TempDir())
			s := j.mapSpec(0, shellProgram(script), 1)
			j.writeInput(&s, "a\n")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				pollUntil(func() bool { b, _ := os.ReadFile(j.path("work/pid")); return strings.HasSuffix(string(b), "\n") })
				cancel()
			}()
			if r := j.runCtx(ctx, s); r.Class != mapreduce.ClassKilled {
				t.Errorf("class %s: %s", r.Class, r.Error)
			}
			waitGone(t, j.path("work/pid"))
		})
	}
}

// waitGone checks that the process whose pid is in the file has ended.
func waitGone(t *testing.T, pidFile string) {
	t.Helper()
	b, err := os.ReadFile(pidFile)
	check(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	check(t, err)
	check(t, pollUntil(func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || parseStat(stat).state == 'Z'
	}))
}

// As a separate process: SIGTERM ends the harness with its exit code and a
// result; SIGKILL also kills the program.
func TestProgramDiesWithHarness(t *testing.T) {
	for name, c := range map[string]struct {
		signal   syscall.Signal
		wantExit int
	}{
		"SIGTERM is answered": {syscall.SIGTERM, mapreduce.ExitKilled},
		"SIGKILL is final":    {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			j := newTestJob(t, t.TempDir())
			s := j.mapSpec(0, shellProgram(`echo $$ > pid; exec sleep 1000`), 1)
			j.writeInput(&s, "a\n")
			check(t, mapreduce.WriteSpec(j.path("spec"), &s))
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "DROVER_TEST_HARNESS_SPEC="+j.path("spec"))
			check(t, cmd.Start())
			check(t, pollUntil(func() bool { b, _ := os.ReadFile(j.path("work/pid")); return strings.HasSuffix(string(b), "\n") }))
			check(t, cmd.Process.Signal(c.signal))
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.wantExit {
				t.Errorf("exit code %d, want %d", got, c.wantExit)
			}
			waitGone(t, j.path("work/pid"))
			if _, err := mapreduce.ReadResult(s.Result); (err == nil) != (c.wantExit > 0) {
				t.Errorf("result: %v", err)
			}
		})
	}
}

func TestBadSpecExitCode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spec")
	check(t, os.WriteFile(path, []byte(`{"version":9}`), 0o600))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DROVER_TEST_HARNESS_SPEC="+path)
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != mapreduce.ExitSpec || !strings.Contains(string(out), "version is 9") {
		t.Errorf("exit code %d, output %s", got, out)
	}
}

// A full disk is distinguished from other failures, and the result can still be
// written. /dev/full stands for the disk.
func TestFullDiskIsClassQuota(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("not proved here: that a full disk is told from other failures; this host has no /dev/full")
	}
	j := newTestJob(t, t.TempDir())
	full := j.path("full")
	check(t, os.Symlink("/dev/full", full))
	for name, reduces := range map[string]int{"map output": 2, "map-only output": 0} {
		t.Run(name, func(t *testing.T) {
			s := j.mapSpec(reduces, shellProgram("cat"), reduces)
			if reduces > 0 {
				s.MapOutput.Data = full
			} else {
				s.Output.Path = full
			}
			j.writeInput(&s, bigInput)
			r := j.run(s)
			if r.Class != mapreduce.ClassQuota || !strings.Contains(r.Error, "disk quota") {
				t.Errorf("class %s: %s", r.Class, r.Error)
			}
			check(t, replaceSymlink(full))
		})
	}
}

// replaceSymlink restores the link that the failed task removed.
func replaceSymlink(path string) error {
	os.Remove(path)
	return os.Symlink("/dev/full", path)
}

func TestReportersOfAllPrograms(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	comb := shellProgram(`cat; echo reporter:counter:g,combined,1 >&2`)
	s := j.mapSpec(0, shellProgram(`cat; echo a log line >&2; echo reporter:counter:g,mapped,3 >&2; echo reporter:counter:g,mapped,4 >&2
		echo reporter:status:half way >&2; echo reporter:counter:only,two >&2; echo "  reporter:status:not at the start" >&2; printf 'no end' >&2`), 1)
	s.Combiner = &comb
	j.writeInput(&s, "a\nb\n")
	r := j.runOK(s)
	want := mapreduce.Counters{"g": {"mapped": 7, "combined": 1}}
	if d := cmp.Diff(want, r.Counters); d != "" {
		t.Error(d)
	}
	if r.Status != "half way" {
		t.Errorf("status %q", r.Status)
	}
	const wantLog = "a log line\nreporter:counter:only,two\n  reporter:status:not at the start\nno end"
	if got := j.log.String(); got != wantLog || r.StderrTail != wantLog {
		t.Errorf("log %q, tail %q", got, r.StderrTail)
	}
	p, err := mapreduce.ReadProgress(s.Progress)
	check(t, err)
	if d := cmp.Diff(want, p.Counters); d != "" || p.Input.Records != 2 {
		t.Errorf("progress %+v", p)
	}
}

// An incomplete total would look right, so the task fails, and is not retried.
func TestTooManyCountersFailTheTask(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	s := j.mapSpec(0, shellProgram(`cat >/dev/null; i=0; while [ $i -lt 1100 ]; do echo "reporter:counter:g,n$i,1"; i=$((i+1)); done >&2`), 1)
	j.writeInput(&s, "a\n")
	r := j.run(s)
	if len(r.Counters["g"]) != maxCounters || r.CountersDropped != 1100-maxCounters {
		t.Errorf("%d counters, %d dropped", len(r.Counters["g"]), r.CountersDropped)
	}
	if r.Class != mapreduce.ClassUserData || !r.Permanent || !strings.Contains(r.Error, "more than 240 different counters (the first too many: g,n240)") {
		t.Errorf("class %s, permanent %t, %q", r.Class, r.Permanent, r.Error)
	}
}

func FuzzReporter(f *testing.F) {
	f.Add([]byte("reporter:counter:a,b,1\nreporter:status:x\nlog\n"))
	f.Add([]byte("reporter:counter:a,b,99999999999999999999\n\xff"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var l lockedBuffer
		p := &reporter{log: &l}
		check(t, p.forward(strings.NewReader(string(b))))
		var want strings.Builder
		for _, line := range strings.SplitAfter(string(b), "\n") {
			rest, isCounter := strings.CutPrefix(line, "reporter:counter:")
			_, _, _, good := parseCounter(rest)
			if !strings.HasPrefix(line, "reporter:status:") && !(isCounter && good) {
				want.WriteString(line)
			}
		}
		if len(b) < stderrBuffer && l.String() != want.String() {
			t.Fatalf("log %q, want %q", l.String(), want.String())
		}
	})
}

func TestFaultyReduceInput(t *testing.T) {
	for name, c := range map[string]struct {
		change    func(j *testJob, in *mapreduce.ReduceInput) error
		wantError string
	}{
		"a changed byte": {func(j *testJob, in *mapreduce.ReduceInput) error {
			f, err := os.OpenFile(filepath.Join(in.Dir, "m1"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("X"), 30)
			return errors.Join(err, f.Close())
		}, "m1 at 0: corrupt"},
		"a shorter file": {func(j *testJob, in *mapreduce.ReduceInput) error { return os.Truncate(filepath.Join(in.Dir, "m1"), 30) }, "corrupt"},
		"a map that is missing": {func(j *testJob, in *mapreduce.ReduceInput) error { in.Maps = 3; return nil },
			"done after 2 of 3"},
		"a helper that gives up": {func(j *testJob, in *mapreduce.ReduceInput) error {
			in.Journal += "2"
			w, err := mapreduce.NewSegmentWriter(in.Journal)
			if err != nil {
				return err
			}
			defer w.Close()
			return w.Fail("node n2 is gone")
		}, "node n2 is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newTestJob(t, t.TempDir())
			var specs []mapreduce.TaskSpec
			var results []*mapreduce.Result
			for i := range 2 {
				s := j.mapSpec(i, mapreduce.Program{Builtin: "identity"}, 1)
				j.writeInput(&s, strings.Repeat("a line of text\n", 100))
				specs, results = append(specs, s), append(results, j.runOK(s))
			}
			in := j.shuffle(0, results, specs)
			check(t, c.change(j, in))
			s := j.reduceSpec(0, shellProgram("cat"), in)
			s.StallMS = 50
			r := j.run(s)
			if r.Class != mapreduce.ClassInput || !strings.Contains(r.Error, c.wantError) {
				t.Errorf("class %s, error %q, want %q", r.Class, r.Error, c.wantError)
			}
		})
	}
}

// A reduce task waits for its maps longer than a map task does for its input.
func TestReduceWaitsForItsMaps(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	m := j.mapSpec(0, mapreduce.Program{Builtin: "identity"}, 1)
	j.writeInput(&m, "a line\n")
	in := j.shuffle(0, []*mapreduce.Result{j.runOK(m)}, []mapreduce.TaskSpec{m})
	later := in.Journal
	in.Journal += "-now"
	s := j.reduceSpec(0, shellProgram("cat"), in)
	s.StallMS = 1
	var wg sync.WaitGroup
	wg.Go(func() {
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(s.Progress); err == nil { // the task waits
				break
			}
		}
		check(t, os.Rename(later, in.Journal))
	})
	r := j.run(s)
	wg.Wait()
	if r.Class != mapreduce.ClassOK {
		t.Errorf("class %s, error %q", r.Class, r.Error)
	}
}

func TestGroupTaskAndItsEnvironment(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	s := j.spec(mapreduce.KindGroup, "g0")
	s.Program = shellProgram(`env > env; pwd > pwd; echo reporter:status:fine >&2; test -z "$(cat)"`)
	s.Identity = mapreduce.TaskIdentity{Job: "j7", JobName: "nightly", Stage: "group", Task: "t3", Attempt: "a3", Run: 2, Index: 3}
	s.Env = []string{"MINE=yes", "mapreduce_job_id=overridden"}
	s.Result = j.path("g0.result")
	r := j.runOK(s)
	if r.Status != "fine" {
		t.Errorf("status %q", r.Status)
	}
	b, err := os.ReadFile(j.path("work/env"))
	check(t, err)
	for _, want := range []string{"MINE=yes", "mapreduce_job_id=overridden", "mapred_job_id=j7", "mapreduce_task_attempt_id=a3", "mapreduce_task_partition=3", "mapred_task_id=a3", "mapreduce_task_ismap=false", "mapreduce_job_name=nightly"} {
		if !strings.Contains("\n"+string(b), "\n"+want+"\n") {
			t.Errorf("environment lacks %s", want)
		}
	}
	pwd, err := os.ReadFile(j.path("work/pwd"))
	check(t, err)
	if strings.TrimSpace(string(pwd)) != s.WorkDir {
		t.Errorf("ran in %s", pwd)
	}
}

func TestMapEnvironmentNamesTheInput(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	s := j.mapSpec(4, shellProgram(`env > env; cat`), 3, mapreduce.Piece{Path: "hdfs:///books/a.txt", Offset: 10, Length: 20, Codec: mapreduce.CodecNone})
	j.writeInput(&s, "a\n")
	j.runOK(s)
	b, err := os.ReadFile(j.path("work/env"))
	check(t, err)
	for _, want := range []string{"mapreduce_map_input_file=hdfs:///books/a.txt", "map_input_file=hdfs:///books/a.txt", "mapreduce_map_input_start=10", "map_input_start=10",
		"mapreduce_map_input_length=20", "map_input_length=20", "mapreduce_job_reduces=3", "mapred_reduce_tasks=3", "mapreduce_task_ismap=true", "mapreduce_task_partition=4"} {
		if !strings.Contains("\n"+string(b), "\n"+want+"\n") {
			t.Errorf("environment lacks %s", want)
		}
	}
}

func TestReducerInputAlwaysHasTab(t *testing.T) {
	j := newTestJob(t, t.TempDir())
	m := j.mapSpec(0, mapreduce.Program{Builtin: "identity"}, 1)
	j.writeInput(&m, "no tab\nempty\t\nboth\tx\ty\n")
	in := j.shuffle(0, []*mapreduce.Result{j.runOK(m)}, []mapreduce.TaskSpec{m})
	s := j.reduceSpec(0, shellProgram("cat"), in)
	if got := j.output(s, j.runOK(s)); got != "both\tx\ty\nempty\t\nno tab\t\n" {
		t.Errorf("the reducer got %q", got)
	}
	s = j.reduceSpec(0, mapreduce.Program{Builtin: "identity"}, in)
	if got := j.output(s, j.runOK(s)); got != "both\tx\ty\nempty\t\nno tab\n" {
		t.Errorf("the built-in wrote %q", got)
	}
}
