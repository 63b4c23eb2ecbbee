// Package words holds the list of retired words, and the test that keeps them out.
// docs/reference/glossary.md has the words that are used.
package words

import (
	_ "embed"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/drover-run/drover/internal/repofiles"
)

//go:embed retired.txt
var list string

// rule is one line of the list.
type rule struct {
	where string // name, comment or text
	re    *regexp.Regexp
	use   string
}

func rules(t *testing.T) []rule {
	t.Helper()
	var out []rule
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := regexp.MustCompile(`\s{2,}`).Split(line, 3)
		if len(f) != 3 {
			t.Fatalf("retired.txt: %q has no three columns two blanks apart", line)
		}
		re := f[1]
		if f[0] == "name" {
			re = "^(" + re + ")$"
		}
		out = append(out, rule{f[0], regexp.MustCompile(re), f[2]})
	}
	return out
}

// exempt reports whether a file quotes others: papers, claims of papers, and the list itself.
func exempt(path string) bool {
	return strings.HasPrefix(path, "internal/words/") || strings.Contains(path, "sim/run/reproduce/") || path == "docs/explanation/reproduction.md" || path == "docs/reference/glossary.md"
}

func generated(path string) bool {
	return strings.HasSuffix(path, ".pb.go") || strings.HasSuffix(path, ".connect.go")
}

// No file uses a retired word.
func TestNoRetiredWords(t *testing.T) {
	root := filepath.Join("..", "..")
	all := rules(t)
	files := 0
	err := repofiles.Walk(root, func(file string) error {
		if exempt(file) || generated(file) {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		switch filepath.Ext(file) {
		case ".go":
			files++
			inGo(t, file, b, all)
		case ".md", ".proto":
			files++
			for i, line := range strings.Split(string(b), "\n") {
				report(t, file, i+1, "text", line, all)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("%d files were read: the test looks at the wrong place", files)
	}
}

// inGo checks the names, comments and literals of a Go file against the list.
func inGo(t *testing.T, path string, src []byte, all []rule) {
	set := token.NewFileSet()
	file := set.AddFile(path, -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return
		}
		line := set.Position(pos).Line
		switch tok {
		case token.IDENT:
			for _, part := range parts(lit) {
				report(t, path, line, "name", part, all)
			}
		case token.COMMENT:
			report(t, path, line, "comment", lit, all)
			report(t, path, line, "text", lit, all)
		case token.STRING:
			report(t, path, line, "text", lit, all)
		}
	}
}

func report(t *testing.T, path string, line int, where, text string, all []rule) {
	for _, r := range all {
		if r.where == where {
			if m := r.re.FindString(text); m != "" {
				t.Errorf("%s:%d: %s %q is retired, use: %s", path, line, where, m, r.use)
			}
		}
	}
}

// parts splits an identifier at its capitals and underscores, in lower case.
func parts(name string) []string {
	var out []string
	start := 0
	r := []rune(name)
	for i := 1; i <= len(r); i++ {
		if i == len(r) || r[i] == '_' || unicode.IsUpper(r[i]) && (!unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1])) {
			if p := strings.ToLower(strings.Trim(string(r[start:i]), "_")); p != "" {
				out = append(out, p)
			}
			start = i
		}
	}
	return out
}

// The list finds the words that it is meant to find.
func TestRetiredWordsAreFound(t *testing.T) {
	all := rules(t)
	for text, where := range map[string]string{"promise": "name", "// x tells whether": "comment", "it is hopeless": "text"} {
		found := false
		for _, r := range all {
			found = found || r.where == where && r.re.MatchString(text)
		}
		if !found {
			t.Errorf("%s %q is not found", where, text)
		}
	}
	if got := strings.Join(parts("BrokenPromisesOfID_2x"), " "); got != "broken promises of id 2x" {
		t.Errorf("parts: %q", got)
	}
}
