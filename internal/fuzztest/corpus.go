package fuzztest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// header is the first line of a file of a corpus, in the format of Go's engine. Each further
// line is one argument, as a Go expression.
const header = "go test fuzz v1"

// readCorpus returns the inputs in a folder that fit the target. No folder means none.
func readCorpus(dir string, fn reflect.Type) ([][]any, error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var all [][]any
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, err
		}
		if in, ok := parseInput(string(text), fn); ok {
			all = append(all, in)
		}
	}
	return all, nil
}

// parseInput parses a file of a corpus, and reports whether it fits the target. Files from before a
// change of the target's arguments do not fit.
func parseInput(text string, fn reflect.Type) ([]any, bool) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if lines[0] != header || len(lines) != fn.NumIn() {
		return nil, false
	}
	var in []any
	for i, line := range lines[1:] {
		kind, value, ok := strings.Cut(line, "(")
		value, closed := strings.CutSuffix(value, ")")
		if !ok || !closed || kind != typeName(fn.In(i+1)) {
			return nil, false
		}
		v, err := parseValue(value, fn.In(i+1))
		if err != nil {
			return nil, false
		}
		in = append(in, v)
	}
	return in, true
}

func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Slice {
		return "[]byte"
	}
	return t.String()
}

func parseValue(text string, t reflect.Type) (any, error) {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Slice:
		s, err := strconv.Unquote(text)
		return []byte(s), err
	case reflect.String:
		s, err := strconv.Unquote(text)
		return s, err
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		return b, err
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 0, 64)
		v.SetInt(n)
		return v.Interface(), err
	case reflect.Uint8, reflect.Uint16, reflect.Uint64:
		n, err := strconv.ParseUint(text, 0, t.Bits())
		v.SetUint(n)
		return v.Interface(), err
	}
	return nil, fmt.Errorf("no inputs of type %s", t)
}

// writeInput writes an input to a file of its own in dir, in the format of Go's engine.
func writeInput(dir string, in []any) (string, error) {
	text := header + "\n"
	for _, v := range in {
		switch v := v.(type) {
		case []byte:
			text += fmt.Sprintf("[]byte(%q)\n", v)
		case string:
			text += fmt.Sprintf("string(%q)\n", v)
		default:
			text += fmt.Sprintf("%T(%v)\n", v, v)
		}
	}
	name := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return name, os.WriteFile(name, []byte(text), 0o644)
}
