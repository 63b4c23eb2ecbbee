package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/drover-run/drover/mapreduce"
)

// TestMain lets the test binary act as the harness, for tests that need it as a
// separate process.
func TestMain(m *testing.M) {
	os.Unsetenv("PYTHONUNBUFFERED") // otherwise scripts in a pipeline take six times the CPU of those in a task
	if spec := os.Getenv("DROVER_TEST_HARNESS_SPEC"); spec != "" {
		os.Unsetenv("DROVER_TEST_HARNESS_SPEC")
		syscall.Exit(Main([]string{spec})) // os.Exit sleeps for a second under the race detector
	}
	if os.Getenv("DROVER_TEST_REAP") != "" {
		syscall.Exit(inheritOrphans())
	}
	os.Exit(m.Run())
}

// tester is the common part of testing.T and rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func check(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lockedBuffer is a stderr for several concurrent writers.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testJob is a folder in which the tasks of one job run.
type testJob struct {
	t   tester
	dir string
	log lockedBuffer
}

func newTestJob(t tester, dir string) *testJob {
	check(t, os.MkdirAll(filepath.Join(dir, "tmp"), 0o700))
	check(t, os.MkdirAll(filepath.Join(dir, "work"), 0o700))
	return &testJob{t: t, dir: dir}
}

func (j *testJob) path(parts ...any) string { return filepath.Join(j.dir, fmt.Sprint(parts...)) }

func (j *testJob) spec(kind mapreduce.Kind, name string) mapreduce.TaskSpec {
	return mapreduce.TaskSpec{Version: mapreduce.SpecVersion, Kind: kind, Identity: mapreduce.TaskIdentity{Job: "j1", Task: name, Attempt: name + "_0"},
		WorkDir: j.path("work"), TempDir: j.path("tmp"), Result: j.path(name, ".result"), Progress: j.path(name, ".progress"), StallMS: 20_000, GraceMS: 200}
}

func (j *testJob) mapSpec(i int, p mapreduce.Program, reduces int, pieces ...mapreduce.Piece) mapreduce.TaskSpec {
	name := fmt.Sprint("m", i)
	s := j.spec(mapreduce.KindMap, name)
	s.Identity.Index = i
	s.Program, s.Reduces = p, reduces
	if pieces == nil {
		pieces = []mapreduce.Piece{{Path: "file", Codec: mapreduce.CodecNone}}
	}
	s.Input = &mapreduce.MapInput{File: j.path(name, ".in"), Pieces: pieces}
	if reduces > 0 {
		s.MapOutput = &mapreduce.MapOutputPaths{Data: j.path(name, ".data"), Index: j.path(name, ".index"), Codec: mapreduce.CodecNone}
	} else {
		s.Output = &mapreduce.OutputFile{Path: j.path(name, ".out"), Codec: mapreduce.CodecNone}
	}
	return s
}

// writeInput writes a complete input, one text for each piece.
func (j *testJob) writeInput(s *mapreduce.TaskSpec, texts ...string) {
	w, err := mapreduce.NewGrowingWriter(s.Input.File)
	check(j.t, err)
	defer w.Close()
	for _, text := range texts {
		_, err := io.WriteString(w, text)
		check(j.t, err)
		check(j.t, w.EndPiece())
	}
	check(j.t, w.Done())
}

// run executes a task in this process and returns its result. It checks that
// nothing but results and outputs is left.
func (j *testJob) run(s mapreduce.TaskSpec) *mapreduce.Result {
	j.t.Helper()
	return j.runCtx(context.Background(), s)
}

func (j *testJob) runCtx(ctx context.Context, s mapreduce.TaskSpec) *mapreduce.Result {
	j.t.Helper()
	s = s.WithDefaults()
	check(j.t, s.Validate())
	code := Run(ctx, &s, os.Stdout, &j.log)
	r, err := mapreduce.ReadResult(s.Result)
	check(j.t, err)
	if code != r.Class.ExitCode() {
		j.t.Fatalf("exit code %d, class %s", code, r.Class)
	}
	left, err := os.ReadDir(s.TempDir)
	check(j.t, err)
	if len(left) > 0 {
		j.t.Fatalf("left in temp: %v", left)
	}
	if _, err := os.Stat(s.Result + ".reserve"); err == nil {
		j.t.Fatal("the reserve is left")
	}
	return r
}

func (j *testJob) runOK(s mapreduce.TaskSpec) *mapreduce.Result {
	j.t.Helper()
	r := j.run(s)
	if r.Class != mapreduce.ClassOK {
		j.t.Fatalf("%s: %s: %s\n%s", s.Identity.Task, r.Class, r.Error, j.log.String())
	}
	return r
}

// shuffle copies partition p of each map output into a folder, as a helper would:
// each verified, in reverse order of the maps.
func (j *testJob) shuffle(p int, maps []*mapreduce.Result, specs []mapreduce.TaskSpec) *mapreduce.ReduceInput {
	in := &mapreduce.ReduceInput{Dir: j.path("r", p, ".in"), Journal: j.path("r", p, ".in.journal"), Maps: len(maps)}
	check(j.t, os.MkdirAll(in.Dir, 0o700))
	w, err := mapreduce.NewSegmentWriter(in.Journal)
	check(j.t, err)
	defer w.Close()
	for k := range maps {
		i := len(maps) - 1 - k
		x, err := mapreduce.ReadIndex(specs[i].MapOutput.Index)
		check(j.t, err)
		data, err := os.ReadFile(specs[i].MapOutput.Data)
		check(j.t, err)
		rg := x.Parts[p]
		part := data[rg.Offset : rg.Offset+rg.Length]
		check(j.t, rg.Verify(bytes.NewReader(part)))
		rg.Offset = 0
		name := fmt.Sprint("m", i)
		check(j.t, os.WriteFile(filepath.Join(in.Dir, name), part, 0o600))
		check(j.t, w.Add(mapreduce.Segment{Map: i, File: name, Codec: x.Codec, Range: rg}))
	}
	check(j.t, w.Done())
	return in
}

func (j *testJob) reduceSpec(p int, prog mapreduce.Program, in *mapreduce.ReduceInput) mapreduce.TaskSpec {
	name := fmt.Sprint("r", p)
	s := j.spec(mapreduce.KindReduce, name)
	s.Identity.Index, s.Program, s.Shuffle = p, prog, in
	s.Output = &mapreduce.OutputFile{Path: j.path(name, ".out"), Codec: mapreduce.CodecNone}
	return s
}

// output reads an output file and compares it with the result.
func (j *testJob) output(s mapreduce.TaskSpec, r *mapreduce.Result) string {
	j.t.Helper()
	b, err := os.ReadFile(s.Output.Path)
	check(j.t, err)
	if r.Output == nil || r.Output.Bytes != int64(len(b)) || r.Output.CRC32C != mapreduce.CRC32C(0, b) {
		j.t.Fatalf("result has %+v for a file of %d bytes", r.Output, len(b))
	}
	if r.Output.Codec == mapreduce.CodecNone {
		if lines := int64(strings.Count(string(b), "\n")); r.Final.Records != lines || r.Final.Bytes != int64(len(b)) {
			j.t.Fatalf("result counts %+v, the file has %d lines and %d bytes", r.Final, lines, len(b))
		}
	}
	return string(b)
}
