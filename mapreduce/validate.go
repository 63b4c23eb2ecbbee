package mapreduce

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The built-in programs by role. sum and wordcount are the same reducer, and so
// are identity and sort.
var (
	builtinMappers   = []string{"identity", "wordcount", "grep", "sort"}
	builtinReducers  = []string{"identity", "wordcount", "sum", "count", "sort"}
	builtinCombiners = []string{"wordcount", "sum"}
)

func specErrorf(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrSpec, fmt.Errorf(format, a...))
}

// Validate returns the first problem of the spec, or nil. Every error wraps
// ErrSpec and names the field. Call it after WithDefaults.
func (s *TaskSpec) Validate() error {
	if s.Version != SpecVersion {
		return specErrorf("version is %d, this harness knows %d", s.Version, SpecVersion)
	}
	for _, check := range []func() error{s.checkPaths, s.checkSizes, s.checkEnv, s.checkKeys, s.checkKind} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *TaskSpec) checkPaths() error {
	for _, p := range []struct{ field, path string }{{"work_dir", s.WorkDir}, {"temp_dir", s.TempDir}, {"result", s.Result}} {
		if !strings.HasPrefix(p.path, "/") {
			return specErrorf("%s must be an absolute path, it is %q", p.field, p.path)
		}
	}
	return nil
}

func (s *TaskSpec) checkSizes() error {
	for _, r := range []struct {
		field      string
		v, min, to int64
	}{
		{"reduces", int64(s.Reduces), 0, MaxReduces},
		{"sort_memory", s.SortMemory, MinSortMemory, maxSortMemory},
		{"max_line", s.MaxLine, 1, MaxMaxLine},
		{"fan_in", int64(s.FanIn), 2, 1024},
		{"stall_ms", s.StallMS, 1, 1 << 40},
		{"grace_ms", s.GraceMS, 1, 1 << 40},
	} {
		if r.v < r.min || r.v > r.to {
			return specErrorf("%s is %d, it must be from %d to %d", r.field, r.v, r.min, r.to)
		}
	}
	return nil
}

func (s *TaskSpec) checkEnv() error {
	for _, e := range s.Env {
		if i := strings.IndexByte(e, '='); i < 1 || strings.IndexByte(e, 0) >= 0 {
			return specErrorf("env entry %q is not KEY=value", e)
		}
	}
	return nil
}

func (s *TaskSpec) checkKeys() error {
	switch {
	case s.Keys.IsZero(), s.Kind == KindMap && s.Reduces > 0:
	case s.Kind == KindReduce && s.Keys.PartitionFields == 0 && len(s.Keys.PartitionKeys) == 0:
	default:
		return specErrorf("keys are for map tasks with reducers, and their fields and order for reduce tasks")
	}
	if s.Keys.Fields > 1 && s.Program.Builtin == "wordcount" {
		return specErrorf("keys.fields is %d, the keys of built-in wordcount have one field", s.Keys.Fields)
	}
	return s.Keys.check(s.Reduces)
}

func (s *TaskSpec) checkKind() error {
	switch s.Kind {
	case KindMap:
		return s.checkMap()
	case KindReduce:
		return s.checkReduce()
	case KindGroup:
		if s.Program.Builtin != "" || len(s.Program.Argv) == 0 {
			return specErrorf("a group task needs program.argv, a built-in cannot be one")
		}
		return nil
	default:
		return specErrorf("kind is %d, want map, reduce or group", int(s.Kind))
	}
}

func (s *TaskSpec) checkMap() error {
	if err := s.Program.check("program", builtinMappers); err != nil {
		return err
	}
	if s.Input == nil || s.Input.File == "" || len(s.Input.Pieces) == 0 {
		return specErrorf("a map task needs input.file and at least one of input.pieces")
	}
	for i, p := range s.Input.Pieces {
		if p.Codec < CodecNone || p.Codec > CodecDeflate {
			return specErrorf("input.pieces[%d].codec is %s", i, p.Codec)
		}
	}
	if s.Reduces == 0 {
		if s.Combiner != nil {
			return specErrorf("a combiner needs reducers: reduces is 0")
		}
		return s.Output.check()
	}
	if s.Combiner != nil {
		if err := s.Combiner.check("combiner", builtinCombiners); err != nil {
			return err
		}
	}
	m := s.MapOutput
	if m == nil || m.Data == "" || m.Index == "" {
		return specErrorf("a map task with reducers needs map_output.data and map_output.index")
	}
	return checkOutputCodec("map_output.codec", m.Codec)
}

func (s *TaskSpec) checkReduce() error {
	if err := s.Program.check("program", builtinReducers); err != nil {
		return err
	}
	if s.Combiner != nil {
		return specErrorf("a combiner runs in map tasks only")
	}
	if s.Shuffle == nil || s.Shuffle.Dir == "" || s.Shuffle.Journal == "" || s.Shuffle.Maps < 0 {
		return specErrorf("a reduce task needs shuffle.dir, shuffle.journal and shuffle.maps")
	}
	return s.Output.check()
}

func (o *OutputFile) check() error {
	if o == nil || o.Path == "" {
		return specErrorf("output.path is missing")
	}
	return checkOutputCodec("output.codec", o.Codec)
}

func checkOutputCodec(field string, c Codec) error {
	if c != CodecNone && c != CodecZstd {
		return specErrorf("%s is %s, want none or zstd", field, c)
	}
	return nil
}

func (p *Program) check(field string, builtins []string) error {
	switch {
	case p.Builtin == "" && len(p.Argv) == 0:
		return specErrorf("%s: neither argv nor builtin is given", field)
	case p.Builtin != "" && len(p.Argv) > 0:
		return specErrorf("%s: both argv and builtin are given", field)
	case p.Builtin == "":
		if p.Argv[0] == "" || len(p.Args) > 0 {
			return specErrorf("%s: argv[0] is empty, or args are given without a builtin", field)
		}
		return nil
	case !slices.Contains(builtins, p.Builtin):
		return specErrorf("%s: built-in %q is not one of %s", field, p.Builtin, strings.Join(builtins, ", "))
	}
	return p.checkArgs(field)
}

func (p *Program) checkArgs(field string) error {
	if p.Builtin != "grep" {
		if len(p.Args) > 0 {
			return specErrorf("%s: built-in %s takes no arguments", field, p.Builtin)
		}
		return nil
	}
	if len(p.Args) != 1 {
		return specErrorf("%s: built-in grep takes one argument, a regular expression", field)
	}
	if _, err := regexp.Compile(p.Args[0]); err != nil {
		return specErrorf("%s: grep: %w", field, err)
	}
	return nil
}
