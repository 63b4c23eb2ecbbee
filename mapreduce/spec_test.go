package mapreduce

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/jobspec"
)

func mapSpec() TaskSpec {
	return TaskSpec{
		Version: SpecVersion, Kind: KindMap, Program: Program{Builtin: "wordcount"}, Reduces: 2,
		Input:     &MapInput{File: "/task/in", Pieces: []Piece{{Path: "hdfs:///f", Length: 10, Codec: CodecNone}}},
		MapOutput: &MapOutputPaths{Data: "/task/out", Index: "/task/out.index", Codec: CodecNone},
		WorkDir:   "/task", TempDir: "/task/tmp", Result: "/task/result.json",
	}
}

func reduceSpec() TaskSpec {
	return TaskSpec{
		Version: SpecVersion, Kind: KindReduce, Program: Program{Argv: []string{"python3", "r.py"}},
		Shuffle: &ReduceInput{Dir: "/task/in", Journal: "/task/in.journal", Maps: 3},
		Output:  &OutputFile{Path: "/task/out", Codec: CodecNone},
		WorkDir: "/task", TempDir: "/task/tmp", Result: "/task/result.json",
	}
}

func TestSpecErrorsNameTheField(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*TaskSpec)
		reduce  bool
		wantErr string
	}{
		"a good map":                    {func(s *TaskSpec) {}, false, ""},
		"a good reduce":                 {func(s *TaskSpec) {}, true, ""},
		"map-only needs an output":      {func(s *TaskSpec) { s.Reduces = 0 }, false, "output.path"},
		"map-only with combiner":        {func(s *TaskSpec) { s.Reduces, s.Combiner = 0, &Program{Builtin: "sum"} }, false, "combiner needs reducers"},
		"a later version":               {func(s *TaskSpec) { s.Version = 2 }, false, "version is 2"},
		"no program":                    {func(s *TaskSpec) { s.Program = Program{} }, false, "neither argv nor builtin"},
		"two programs":                  {func(s *TaskSpec) { s.Program.Argv = []string{"cat"} }, false, "both argv and builtin"},
		"a reducer as mapper":           {func(s *TaskSpec) { s.Program.Builtin = "sum" }, false, `"sum" is not one of identity`},
		"count as combiner":             {func(s *TaskSpec) { s.Combiner = &Program{Builtin: "count"} }, false, `"count" is not one of`},
		"grep without expression":       {func(s *TaskSpec) { s.Program.Builtin = "grep" }, false, "one argument"},
		"grep with a wrong expression":  {func(s *TaskSpec) { s.Program = Program{Builtin: "grep", Args: []string{"("}} }, false, "missing closing"},
		"arguments for wordcount":       {func(s *TaskSpec) { s.Program.Args = []string{"x"} }, false, "takes no arguments"},
		"too many reducers":             {func(s *TaskSpec) { s.Reduces = 70000 }, false, "from 0 to 65535"},
		"too little memory":             {func(s *TaskSpec) { s.SortMemory = 10 }, false, "sort_memory is 10"},
		"a relative path":               {func(s *TaskSpec) { s.TempDir = "tmp" }, false, "temp_dir must be an absolute path"},
		"an environment without name":   {func(s *TaskSpec) { s.Env = []string{"=x"} }, false, "not KEY=value"},
		"gzip output":                   {func(s *TaskSpec) { s.Output.Codec = CodecGzip }, true, "want none or zstd"},
		"a reduce without folder":       {func(s *TaskSpec) { s.Shuffle.Dir = "" }, true, "shuffle.dir"},
		"a reduce with a combiner":      {func(s *TaskSpec) { s.Combiner = &Program{Builtin: "sum"} }, true, "map tasks only"},
		"a group with a built-in":       {func(s *TaskSpec) { s.Kind = KindGroup }, false, "group task needs program.argv"},
		"no kind":                       {func(s *TaskSpec) { s.Kind = 0 }, false, "kind is 0"},
		"a piece without codec":         {func(s *TaskSpec) { s.Input.Pieces[0].Codec = 0 }, false, "codec"},
		"a merge of one run at a time":  {func(s *TaskSpec) { s.FanIn = 1 }, false, "fan_in is 1"},
		"a map without place to output": {func(s *TaskSpec) { s.MapOutput = nil }, false, "map_output.data"},
	} {
		t.Run(name, func(t *testing.T) {
			s := mapSpec()
			if c.reduce {
				s = reduceSpec()
			}
			c.change(&s)
			s = s.WithDefaults()
			err := s.Validate()
			if (err == nil) != (c.wantErr == "") || (err != nil && (!strings.Contains(err.Error(), c.wantErr) || !errors.Is(err, ErrSpec))) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
}

func TestSpecRoundTripFillsDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spec.json")
	s := mapSpec()
	if err := WriteSpec(path, &s); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSpec(path)
	if err != nil {
		t.Fatal(err)
	}
	want := s.WithDefaults()
	if d := cmp.Diff(&want, got); d != "" {
		t.Fatal(d)
	}
	if got.SortMemory != defaultSortMemory || got.FanIn != defaultFanIn {
		t.Errorf("defaults are missing: %+v", got)
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []TaskSpec{mapSpec(), reduceSpec()} {
		b, err := json.Marshal(&s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"version":1,"kind":"map","unknown":1}`))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		s, err := parseSpec(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseSpec(again); err != nil {
			t.Fatalf("a spec that was accepted is refused after encoding: %v", err)
		}
	})
}

// A job that no map task could run is refused at submission.
func TestJobsHaveNoMoreReducersThanTasksKnow(t *testing.T) {
	if jobspec.MaxReduceTasks != MaxReduces {
		t.Errorf("jobs may have %d reduce tasks, a map output %d partitions", jobspec.MaxReduceTasks, MaxReduces)
	}
}
