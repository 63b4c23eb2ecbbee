package hcl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/jobspec"
)

// maxJSONDepth bounds the nesting of a job in JSON. A job itself has five levels.
const maxJSONDepth = 64

// jsonScan records where the values of a job in JSON stand.
type jsonScan struct {
	dec      *json.Decoder
	src      []byte
	offset   map[string]int64 // end of the name or element, by path as in jobspec.Problem
	problems []jsonProblem
}

type jsonProblem struct {
	offset int64
	text   string
	hint   string
}

// parseJSON parses a job in canonical JSON. Each problem names file and line.
func parseJSON(name string, src []byte) (*jobspec.Job, error) {
	s := &jsonScan{dec: json.NewDecoder(bytes.NewReader(src)), src: src, offset: map[string]int64{}}
	s.dec.UseNumber()
	if err := s.value("", reflect.TypeFor[jobspec.Job](), 0); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s:%d: not valid JSON: %w", name, s.line(syntaxOffset(err, s.dec.InputOffset())), err)
	}
	if len(s.problems) > 0 {
		return nil, s.report(name)
	}
	j, err := jobspec.Decode(src)
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr):
		return nil, fmt.Errorf("%s:%d: %s is %s: want %s", name, s.line(typeErr.Offset), s.pathAt(typeErr), typeErr.Value, jsonTypeText(typeErr.Type))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.setDefaults(j)
	for i := range j.Stages {
		s.alias(fmt.Sprintf("stages[%d]", i), fmt.Sprintf("stage[%q]", j.Stages[i].Name))
	}
	for _, p := range jobspec.Validate(j) {
		s.problems = append(s.problems, jsonProblem{s.nearest(p.Path), strings.TrimPrefix(p.Path+": "+p.Text, ": "), p.Hint})
	}
	if len(s.problems) > 0 {
		return nil, s.report(name)
	}
	return j, nil
}

// setDefaults sets the defaults as Parse does for HCL, where a field that is left
// out is not the same as its zero.
func (s *jsonScan) setDefaults(j *jobspec.Job) {
	if _, given := s.offset["keep_failed"]; !given {
		j.KeepFailed = jobspec.DefaultKeepFailed
	}
	for i := range j.Stages {
		if _, given := s.offset[fmt.Sprintf("stages[%d].kind", i)]; !given {
			j.Stages[i].Kind = jobspec.KindGroup
		}
	}
	if j.Deadline != nil {
		*j.Deadline = j.Deadline.UTC()
	}
	jobspec.SetDefaults(j)
}

// pathAt returns the path of the value that has a wrong type. The error names it
// without its index in a list.
func (s *jsonScan) pathAt(e *json.UnmarshalTypeError) string {
	for _, path := range slices.Sorted(maps.Keys(s.offset)) {
		if s.offset[path] == e.Offset && path != "" {
			return path
		}
	}
	return cmp.Or(e.Field, "the job")
}

func (s *jsonScan) report(name string) error {
	lines := make([]string, len(s.problems))
	for i, p := range s.problems {
		lines[i] = fmt.Sprintf("%s:%d: %s; %s", name, s.line(p.offset), p.text, p.hint)
	}
	return errors.New(strings.Join(lines, "\n"))
}

func (s *jsonScan) line(offset int64) int {
	return 1 + bytes.Count(s.src[:min(int(offset), len(s.src))], []byte{'\n'})
}

// syntaxOffset returns where the decoder stopped.
func syntaxOffset(err error, at int64) int64 {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Offset
	}
	return at
}

// value reads one value. t is the type it is decoded into, nil if unknown; for a
// struct, names that it does not have are problems, and so is a zero that would
// become a default.
func (s *jsonScan) value(path string, t reflect.Type, depth int) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > maxJSONDepth {
		return fmt.Errorf("more than %d levels deep", maxJSONDepth)
	}
	token, err := s.dec.Token()
	if err != nil {
		return err
	}
	s.offset[path] = s.dec.InputOffset()
	switch token {
	case json.Delim('{'):
		return s.object(path, t, depth)
	case json.Delim('['):
		return s.array(path, t, depth)
	}
	s.checkZero(path, token)
	return nil
}

func (s *jsonScan) object(path string, t reflect.Type, depth int) error {
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct && t.Name() != "Time" {
		fields = jsonFields(t)
	}
	for s.dec.More() {
		token, err := s.dec.Token()
		if err != nil {
			return err
		}
		name, ok := token.(string)
		if !ok {
			return fmt.Errorf("a name must be text, not %v", token)
		}
		inner, known := fields[name]
		if _, twice := s.offset[joinPath(path, name)]; twice {
			s.problems = append(s.problems, jsonProblem{s.dec.InputOffset(), joinPath(path, name) + " stands twice", "keep one"})
		}
		if fields != nil && !known {
			s.addUnknown(path, name, fields)
		}
		if err := s.value(joinPath(path, name), inner, depth+1); err != nil {
			return err
		}
	}
	_, err := s.dec.Token()
	return err
}

func (s *jsonScan) array(path string, t reflect.Type, depth int) error {
	var inner reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		inner = t.Elem()
	}
	for i := 0; s.dec.More(); i++ {
		if err := s.value(fmt.Sprintf("%s[%d]", path, i), inner, depth+1); err != nil {
			return err
		}
	}
	_, err := s.dec.Token()
	return err
}

func (s *jsonScan) addUnknown(path, name string, fields map[string]reflect.Type) {
	known := slices.Sorted(maps.Keys(fields))
	hint := "expected are " + strings.Join(known, ", ")
	if near := jobspec.Suggest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	s.problems = append(s.problems, jsonProblem{s.dec.InputOffset(), fmt.Sprintf("%s: there is no such field", joinPath(path, name)), hint})
}

// checkZero refuses a written zero in the fields of stages that have a default, and
// an empty text in those of the job.
func (s *jsonScan) checkZero(path string, token json.Token) {
	if token == "" && slices.Contains([]string{"tenant", "priority", "project", "on_miss", "gather_logs"}, path) {
		s.problems = append(s.problems, jsonProblem{s.dec.InputOffset(), path + " is empty", "give a value or leave it out"})
	}
	field := path[strings.LastIndexByte(path, '.')+1:]
	if !strings.HasPrefix(path, "stages[") && path != "runtime_bound" || strings.Contains(path, ".env.") || zeroHints[field] == "" {
		return
	}
	zero := false
	switch token := token.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(token.String(), 64)
		zero = err == nil && f == 0
	case string:
		d, err := time.ParseDuration(token)
		zero = err == nil && d == 0
	}
	if zero {
		s.problems = append(s.problems, jsonProblem{s.dec.InputOffset(), path + " is zero", zeroHints[field]})
	}
}

// alias makes the places below one path known under another.
func (s *jsonScan) alias(from, to string) {
	for path, at := range s.offset {
		if rest, ok := strings.CutPrefix(path, from); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			s.offset[to+rest] = at
		}
	}
}

// nearest returns the place of the innermost known part of a path.
func (s *jsonScan) nearest(path string) int64 {
	for {
		if at, ok := s.offset[path]; ok {
			return at
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return 0
		}
		path = path[:i]
	}
}

// jsonFields returns the JSON names of a struct's fields.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[name] = f.Type
	}
	return out
}

func jsonTypeText(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "a whole number"
	}
}
