package hdfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// MaxGlobMatches bounds the result of Glob.
const MaxGlobMatches = 1_000_000

// HasGlob reports whether a path contains characters that Glob expands.
func HasGlob(p string) bool { return strings.ContainsAny(p, `*?[{\`) }

// Glob returns the matching files and directories, sorted by path bytes. Patterns
// are those of Hadoop's FileInputFormat: '*', '?', character classes '[a-z]' and
// '[^a]', and alternatives '{a,b}', each within one path component. As in Hadoop,
// '*' also matches names that start with '.' or '_'; callers that skip such names
// do so themselves. A path without such characters must exist (ErrNotExist). A
// pattern without matches returns an empty list. Cost: one List for each directory
// that matches the components before a wildcard.
func Glob(ctx context.Context, source Source, pattern string) ([]Info, error) {
	clean, err := CleanPath(pattern)
	if err != nil {
		return nil, err
	}
	if !HasGlob(clean) {
		info, err := source.Stat(ctx, clean)
		if err != nil {
			return nil, err
		}
		return []Info{info}, nil
	}
	level := []Info{{Path: "/", Dir: true}}
	parts := strings.Split(clean[1:], "/")
	for i, part := range parts {
		level, err = expandComponent(ctx, source, level, part, i == len(parts)-1)
		if err != nil {
			return nil, fmt.Errorf("glob %s: %w", pattern, err)
		}
	}
	slices.SortFunc(level, func(a, b Info) int { return strings.Compare(a.Path, b.Path) })
	return level, nil
}

// expandComponent returns the entries of dirs that match one path component.
func expandComponent(ctx context.Context, source Source, dirs []Info, part string, last bool) ([]Info, error) {
	var next []Info
	add := func(info Info) error {
		if !last && !info.Dir {
			return nil
		}
		if len(next) == MaxGlobMatches {
			return fmt.Errorf("%w: matches more than %d names; make the pattern narrower", ErrInvalid, MaxGlobMatches)
		}
		next = append(next, info)
		return nil
	}
	if !HasGlob(part) {
		for _, dir := range dirs {
			info, err := source.Stat(ctx, path.Join(dir.Path, part))
			if errors.Is(err, ErrNotExist) || errors.Is(err, ErrNotDirectory) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if err := add(info); err != nil {
				return nil, err
			}
		}
		return next, nil
	}
	patterns, err := expandBraces(part)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		entries, err := source.List(ctx, dir.Path)
		if errors.Is(err, ErrNotExist) { // deleted since it was listed
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if ctx.Err() != nil { // matching many names with long patterns takes long
				return nil, context.Cause(ctx)
			}
			if !matchAny(patterns, path.Base(entry.Path)) {
				continue
			}
			if err := add(entry); err != nil {
				return nil, err
			}
		}
	}
	return next, nil
}

func matchAny(patterns []string, name string) bool {
	for _, pattern := range patterns {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	return false
}

// Bounds on the expansion of the braces of one path component. The cost of matching a name grows
// with the bytes.
const (
	maxAlternatives     = 1024
	maxAlternativeBytes = 64 << 10
)

// expandBraces expands a{b,c}d to abd and acd; braces may be nested. It checks that
// each result is a valid pattern of path.Match.
func expandBraces(part string) ([]string, error) {
	todo, done, bytes := []string{part}, []string(nil), 0
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		open, alternatives, end, err := splitFirstBrace(p)
		if err != nil {
			return nil, fmt.Errorf("%w: pattern %q: %s", ErrInvalid, part, err)
		}
		if open < 0 {
			if _, err := path.Match(p, ""); err != nil {
				return nil, fmt.Errorf("%w: pattern %q: unclosed [ or \\ at the end", ErrInvalid, part)
			}
			done, bytes = append(done, p), bytes+len(p)
		}
		for _, alternative := range alternatives {
			todo = append(todo, p[:open]+alternative+p[end:])
		}
		if len(todo)+len(done) > maxAlternatives || bytes > maxAlternativeBytes {
			return nil, fmt.Errorf("%w: pattern %q has more than %d alternatives, or %d bytes in them", ErrInvalid, part, maxAlternatives, maxAlternativeBytes)
		}
	}
	slices.Sort(done)
	return slices.Compact(done), nil
}

// splitFirstBrace returns the index of the first { of a pattern, its alternatives,
// and the index after its }. open is -1 if there is no brace.
func splitFirstBrace(p string) (open int, alternatives []string, end int, err error) {
	open, depth, start, class := -1, 0, 0, false
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '{':
			if depth == 0 {
				open, start = i, i+1
			}
			depth++
		case c == ',' && depth == 1:
			alternatives, start = append(alternatives, p[start:i]), i+1
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return open, append(alternatives, p[start:i]), i + 1, nil
			}
		}
	}
	if depth > 0 {
		return 0, nil, 0, errors.New("a { is not closed")
	}
	return -1, nil, 0, nil
}
