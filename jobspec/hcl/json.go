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
	"unicode/utf8"

	"github.com/drover-run/drover/jobspec"
)

// maxJSONDepth bounds the nesting of a job in JSON. A job itself has five levels.
const maxJSONDepth = 64

// jsonScan records where the values of a job in JSON stand.
type jsonScan struct {
	dec      *json.Decoder
	src      []byte
	offset   map[string]int64 // end of the value's first token, by path as in jobspec.Problem
	start    map[string]int64 // of the value
	problems []jsonProblem
	unreadFields
}

type jsonProblem struct {
	offset int64
	text   string
	hint   string
}

// parseJSON parses a job in canonical JSON. Each problem names file, line and column in characters.
func parseJSON(name string, src []byte, given []Given) (*jobspec.Job, error) {
	if err := noValuesInJSON(name, given); err != nil {
		return nil, err
	}
	s := &jsonScan{dec: json.NewDecoder(bytes.NewReader(src)), src: src, offset: map[string]int64{}, start: map[string]int64{}, unreadFields: newUnreadFields()}
	s.dec.UseNumber()
	if err := s.value("", reflect.TypeFor[jobspec.Job](), 0); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s:%s: not valid JSON: %w", name, s.position(syntaxOffset(err, s.dec.InputOffset())), err)
	}
	decode := jobspec.Decode
	if len(s.problems) > 0 { // the problems already name the fields that it would refuse
		decode = jobspec.DecodeStored
	}
	j, err := decode(src)
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr): // there may be more problems, so it is unknown which fields are valid
		path := s.pathAt(typeErr)
		s.problems = append(s.problems, jsonProblem{s.nearest(path), fmt.Sprintf("%s is %s", path, typeErr.Value), "want " + jsonTypeText(typeErr.Type)})
		return nil, s.report(name)
	case err != nil && len(s.problems) > 0:
		return nil, s.report(name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.setDefaults(j)
	s.alias("stages", "stage")
	for i := range j.Stages {
		from, to := fmt.Sprintf("stages[%d]", i), fmt.Sprintf("stage[%q]", j.Stages[i].Name)
		s.alias(from, to)
		for k, f := range j.Stages[i].Files {
			s.alias(fmt.Sprintf("%s.files[%d]", from, k), fmt.Sprintf("%s.file[%q]", to, f.Name))
		}
		for k, x := range j.Stages[i].Secrets {
			s.alias(fmt.Sprintf("%s.secrets[%d]", from, k), fmt.Sprintf("%s.secret[%q]", to, x.Env))
		}
	}
	for _, p := range jobspec.ValidateRead(j, func(path string) bool { _, given := s.start[path]; return s.isRead(path, given) }) {
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

// report returns the problems as lines, in the order of the file.
func (s *jsonScan) report(name string) error {
	slices.SortStableFunc(s.problems, func(a, b jsonProblem) int { return cmp.Compare(a.offset, b.offset) })
	var lines []string
	for _, p := range s.problems[:min(len(s.problems), maxShown)] {
		lines = append(lines, fmt.Sprintf("%s:%s: %s; %s", name, s.position(p.offset), p.text, p.hint))
	}
	if more := len(s.problems) - maxShown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more problems", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// position returns the line and the column of an offset.
func (s *jsonScan) position(offset int64) string {
	before := s.src[:min(int(offset), len(s.src))]
	return fmt.Sprintf("%d:%d", 1+bytes.Count(before, []byte{'\n'}), 1+utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]))
}

// next returns where the next token begins.
func (s *jsonScan) next() int64 {
	at := s.dec.InputOffset()
	for at < int64(len(s.src)) && strings.IndexByte(" \t\r\n,:", s.src[at]) >= 0 {
		at++
	}
	return at
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
	start := s.next()
	token, err := s.dec.Token()
	if err != nil {
		return err
	}
	s.offset[path], s.start[path] = s.dec.InputOffset(), start
	switch token {
	case json.Delim('{'):
		return s.object(path, t, depth)
	case json.Delim('['):
		return s.array(path, t, depth)
	}
	s.checkZero(start, path, token)
	return nil
}

func (s *jsonScan) object(path string, t reflect.Type, depth int) error {
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct && t.Name() != "Time" {
		fields = jsonFields(t)
	}
	for s.dec.More() {
		start := s.next()
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
			s.problems = append(s.problems, jsonProblem{start, joinPath(path, name) + " stands twice", "keep one"})
		}
		if fields != nil && !known {
			s.addUnknown(start, path, name, fields)
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

func (s *jsonScan) addUnknown(at int64, path, name string, fields map[string]reflect.Type) {
	known := slices.Sorted(maps.Keys(fields))
	hint := "expected are " + strings.Join(known, ", ")
	if near := jobspec.Suggest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
		s.meant[joinPath(path, near)] = true
	} else {
		s.unknownIn[path] = true
	}
	s.problems = append(s.problems, jsonProblem{at, fmt.Sprintf("%s: there is no such field", joinPath(path, name)), hint})
}

// checkZero refuses a written zero in the fields of stages that have a default, and
// an empty text in those of the job.
func (s *jsonScan) checkZero(at int64, path string, token json.Token) {
	if token == "" && slices.Contains([]string{"tenant", "priority", "project", "on_miss", "gather_logs"}, path) {
		s.problems = append(s.problems, jsonProblem{at, path + " is empty", "give a value or leave it out"})
		s.unread[path] = true
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
		s.problems = append(s.problems, jsonProblem{at, path + " is zero", zeroHints[field]})
		s.unread[path] = true
	}
}

// alias copies what is known of one path, and of the paths below it, to another path.
func (s *jsonScan) alias(from, to string) {
	aliasIn(s.start, from, to)
	for _, m := range []map[string]bool{s.unread, s.meant, s.unknownIn} {
		aliasIn(m, from, to)
	}
}

func aliasIn[V any](of map[string]V, from, to string) {
	for path, v := range maps.Clone(of) {
		if rest, ok := strings.CutPrefix(path, from); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			of[to+rest] = v
		}
	}
}

// nearest returns the place of the innermost known part of a path.
func (s *jsonScan) nearest(path string) int64 {
	for {
		if at, ok := s.start[path]; ok {
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
