package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// claimPages are the pages whose tables name the test of each row, with the section
// of the table and the least number of its rows.
var claimPages = []struct {
	page, section string
	rows          int
}{{"threat-model.md", "Claims", 20}, {"found-by-attack.md", "Findings", 40}, {"found-by-attack.md", "By number", 44},
	{"decisions/user-namespaces.md", "Choice", 5}, {"design/files-on-disk.md", "Files", 18},
	{"guarantees.md", "Delivery", 10}, {"guarantees.md", "Durability", 10}, {"guarantees.md", "Time", 6}, {"guarantees.md", "Isolation", 6}}

// TestThreatModelNamesTestsThatExist finds each test that the pages name: a claim
// without its test is no claim. Each row must name one.
func TestThreatModelNamesTestsThatExist(t *testing.T) {
	exists := testNames(t)
	named := regexp.MustCompile("`(Test[\\w/]+)`")
	for _, p := range claimPages {
		page, err := os.ReadFile(filepath.Join(docsRoot, "docs", "explanation", p.page))
		if err != nil {
			t.Fatal(err)
		}
		_, claims, ok := strings.Cut(string(page), "## "+p.section+"\n")
		claims, _, more := strings.Cut(claims, "\n## ")
		if !ok || !more {
			t.Fatalf("%s: no section %q", p.page, p.section)
		}
		rows := -2 // the head
		for line := range strings.Lines(claims) {
			if !strings.HasPrefix(line, "| ") {
				continue
			}
			if rows++; rows <= 0 {
				continue
			}
			tests := named.FindAllStringSubmatch(line, -1)
			if len(tests) == 0 {
				t.Errorf("%s: no test: %s", p.page, line)
			}
			for _, m := range tests {
				if !exists[m[1]] {
					t.Errorf("%s: there is no %s: %s", p.page, m[1], line)
				}
			}
		}
		if rows < p.rows {
			t.Errorf("%s: %d rows were read", p.page, rows)
		}
	}
}

// testNames returns the names of all tests of the repository, and of the scripts of
// TestScripts.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	def := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, file := range repositoryFiles(t) {
		if script, ok := strings.CutPrefix(filepath.ToSlash(file), "cmd/drover/testdata/script/"); ok {
			names["TestScripts/"+strings.TrimSuffix(script, ".txt")] = true
		}
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(docsRoot, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range def.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}
