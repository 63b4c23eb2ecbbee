package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/drover-run/drover/internal/repofiles"
)

// repositoryFiles returns the slash-separated paths of the repository's files that
// may name documents: sources, scripts, units and documents.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	kinds := []string{".go", ".md", ".sh", ".txt", ".proto", ".service", ".conf", ".hcl", ""}
	var files []string
	err := repofiles.Walk(docsRoot, func(file string) error {
		if slices.Contains(kinds, path.Ext(file)) {
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// docFiles returns the Markdown files of the repository.
func docFiles(t *testing.T) []string {
	t.Helper()
	files := slices.DeleteFunc(repositoryFiles(t), func(f string) bool { return path.Ext(f) != ".md" })
	if len(files) < 20 {
		t.Fatalf("only %d documents found below %s", len(files), docsRoot)
	}
	return files
}

var (
	linkRE    = regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	headingRE = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	codeRE    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// anchors returns the fragments that GitHub gives the headings of a document.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range headingRE.FindAllStringSubmatch(text, -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(strings.ReplaceAll(m[1], "`", "")) {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			case r == ' ':
				b.WriteByte('-')
			}
		}
		out["#"+b.String()] = true
	}
	return out
}

// deadLinks returns the links of a document whose file or heading does not exist.
// exists reports whether a path in the repository exists, and read returns a document.
func deadLinks(file, text string, exists func(string) bool, read func(string) string) []string {
	var dead []string
	for _, m := range linkRE.FindAllStringSubmatch(codeRE.ReplaceAllString(text, ""), -1) {
		if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
			continue
		}
		target := file
		if m[1] != "" {
			target = path.Join(path.Dir(file), m[1])
		}
		switch {
		case !exists(target):
			dead = append(dead, m[1])
		case m[2] != "" && path.Ext(target) == ".md" && !anchors(read(target))[m[2]]:
			dead = append(dead, m[1]+m[2])
		}
	}
	return dead
}

func existsInRepository(name string) bool {
	_, err := os.Stat(filepath.Join(docsRoot, filepath.FromSlash(name)))
	return err == nil
}

func TestNoDocLinkIsDead(t *testing.T) {
	links := 0
	for _, file := range docFiles(t) {
		text := readDoc(t, file)
		links += len(linkRE.FindAllString(text, -1))
		for _, l := range deadLinks(file, text, existsInRepository, func(f string) string { return readDoc(t, f) }) {
			t.Errorf("%s: the link to %s leads nowhere", file, l)
		}
	}
	if links < 40 {
		t.Errorf("found only %d links", links)
	}
}

// The check finds dead files and dead headings.
func TestDeadLinksAreFound(t *testing.T) {
	text := "[a](b.md) [b](gone.md) [c](b.md#here-it-is) [d](b.md#gone) [e](#own) [f](https://x.org/y) `[g](gone)`\n# Own\n"
	exists := func(f string) bool { return f == "docs/a.md" || f == "docs/b.md" }
	read := func(f string) string {
		if f == "docs/b.md" {
			return "## Here `it` is\n"
		}
		return text
	}
	if got := strings.Join(deadLinks("docs/a.md", text, exists, read), " "); got != "gone.md b.md#gone" {
		t.Errorf("dead links: %q", got)
	}
}

// Code, units, scripts and documents that name a document name one that exists.
func TestNamedDocsExist(t *testing.T) {
	nameRE := regexp.MustCompile(`\bdocs/[a-zA-Z0-9_/.-]*[a-zA-Z0-9_]`)
	n := 0
	for _, file := range repositoryFiles(t) {
		if file == "cmd/drover/doclinks_test.go" {
			continue
		}
		for line := range strings.Lines(readDoc(t, file)) {
			if !strings.Contains(line, "docs/") { // the expression alone is slow
				continue
			}
			for _, name := range nameRE.FindAllString(line, -1) {
				n++
				if !existsInRepository(name) {
					t.Errorf("%s names %s, which does not exist", file, name)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("found only %d names of documents", n)
	}
}

// A reader of docs/README.md finds every document, by name or by its folder.
func TestEveryDocIsInTheIndex(t *testing.T) {
	index := readDoc(t, "docs/README.md")
	for _, file := range docFiles(t) {
		rel, ok := strings.CutPrefix(file, "docs/")
		if !ok || rel == "README.md" {
			continue
		}
		if !strings.Contains(index, "("+rel+")") && !strings.Contains(index, "("+path.Dir(rel)+")") {
			t.Errorf("docs/README.md lists neither %s nor its folder", rel)
		}
	}
}

var (
	absentRE = regexp.MustCompile(`\b(SCHEDULING|ARCHITECTURE|READING|TESTBED|SUSPEND|STYLE|WORDS)(\.md\b|'s\b|,? section)|\bsee (SCHEDULING|ARCHITECTURE|READING)\b|\b[Ii]ssue [0-9]+\b|\b[Bb]ar [0-9]\b`)
	// absentParts has a part of each text that absentRE finds. The expression begins with no literal, so it
	// is slow, the more so under the race detector: most lines need no more than these.
	absentParts = []string{"SCHEDULING", "ARCHITECTURE", "READING", "TESTBED", "SUSPEND", "STYLE", "WORDS", "ssue ", "ar "}
)

// absentNote returns what a line cites that is not in the repository, or "".
func absentNote(line string) string {
	if !slices.ContainsFunc(absentParts, func(p string) bool { return strings.Contains(line, p) }) {
		return ""
	}
	return absentRE.FindString(line)
}

// Documents must not refer to notes that are not in the repository.
func TestDocsCiteOnlyTheRepository(t *testing.T) {
	for _, file := range repositoryFiles(t) {
		if file == "cmd/drover/doclinks_test.go" {
			continue
		}
		for i, line := range strings.Split(readDoc(t, file), "\n") {
			if m := absentNote(line); m != "" {
				t.Errorf("%s:%d: %q refers to something that is not in the repository", file, i+1, m)
			}
		}
	}
}

// The check finds each kind of citation.
func TestAbsentNotesAreFound(t *testing.T) {
	for _, want := range []string{"SCHEDULING.md", "ARCHITECTURE's", "READING, section", "TESTBED section", "SUSPEND.md", "STYLE.md", "WORDS.md", "see SCHEDULING", "see ARCHITECTURE", "see READING", "Issue 1", "issue 12", "Bar 3", "bar 4"} {
		if got := absentNote("as " + want + " says"); got != want {
			t.Errorf("%q is found as %q", want, got)
		}
	}
	for _, line := range []string{"the issue of 3 words", "a bar of 4", "READING a file", "near 5 o'clock"} {
		if got := absentNote(line); got != "" {
			t.Errorf("%q is found in %q", got, line)
		}
	}
}
