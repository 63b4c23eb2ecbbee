package harness

import (
	"bytes"
	"regexp"

	"github.com/drover-run/drover/mapreduce"
)

// collectFunc consumes a key and a value, or a whole line as key if bare.
type collectFunc func(key, value []byte, bare bool) error

var oneValue = []byte("1")

// builtinMap runs a built-in mapper over the split:
//
//	identity   the line as it is: its first fields are the key
//	sort       the whole line is the key
//	grep RE    the lines that match (RE2 syntax), as identity
//	wordcount  each word with the value 1; words are separated by white space
//	           (space, \t \n \v \f \r)
func (t *task) builtinMap(collect collectFunc) error {
	var use func(line []byte) error
	switch p := t.spec.Program; p.Builtin {
	case "identity":
		use = t.lineCollector(collect)
	case "sort":
		use = func(line []byte) error { return collect(line, nil, true) }
	case "grep":
		re, err := regexp.Compile(p.Args[0])
		if err != nil {
			return classErrorf(mapreduce.ClassSpec, "grep: %w", err)
		}
		return t.eachChunk(t.ctx, true, func(text []byte) error {
			return eachMatch(text, re, t.lineCollector(collect))
		})
	case "wordcount":
		use = func(line []byte) error {
			return eachWord(line, func(w []byte) error { return collect(w, oneValue, false) })
		}
	default:
		return classErrorf(mapreduce.ClassSpec, "built-in mapper %q", p.Builtin)
	}
	return t.eachChunk(t.ctx, true, func(text []byte) error {
		for len(text) > 0 {
			i := bytes.IndexByte(text, '\n')
			if err := use(text[:i]); err != nil {
				return err
			}
			text = text[i+1:]
		}
		return nil
	})
}

// eachMatch calls use with each line of text that re matches. text ends with a newline. It skips
// lines without the literal prefix of re, many at a time.
func eachMatch(text []byte, re *regexp.Regexp, use func(line []byte) error) error {
	prefix, _ := re.LiteralPrefix() // prefix never contains U+FFFD, which matches invalid bytes as well
	literal := []byte(prefix)
	for len(text) > 0 {
		i := bytes.Index(text, literal)
		if i < 0 {
			return nil
		}
		text = text[bytes.LastIndexByte(text[:i], '\n')+1:]
		end := bytes.IndexByte(text, '\n')
		if re.Match(text[:end]) {
			if err := use(text[:end]); err != nil {
				return err
			}
		}
		text = text[end+1:]
	}
	return nil
}

// builtinReduce runs a built-in reducer:
//
//	identity, sort   every line as the mapper wrote it
//	sum, wordcount   key TAB sum of the values, which must be integers
//	count            key TAB number of values
func (t *task) builtinReduce(next nextFunc, out *outputWriter) error {
	var f valueFolder
	switch b := t.spec.Program.Builtin; b {
	case "identity", "sort":
		for {
			r, err := next()
			if r == nil || err != nil {
				return err
			}
			if err := out.writeLine(r.Key, r.Value, r.NoValue); err != nil {
				return err
			}
		}
	case "sum", "wordcount":
		f = &sumFolder{}
	case "count":
		f = &countFolder{}
	default:
		return classErrorf(mapreduce.ClassSpec, "built-in reducer %q", b)
	}
	return foldGroups(next, f, func(key, value []byte) error { return out.writeLine(key, value, false) })
}
