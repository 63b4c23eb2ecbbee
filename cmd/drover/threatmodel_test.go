package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestThreatModelNamesTestsThatExist finds each test that the threat model names:
// a claim without its test is no claim. Each row must name one.
func TestThreatModelNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(docsRoot, "docs", "explanation", "threat-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, claims, ok := strings.Cut(string(page), "## Claims\n")
	claims, _, more := strings.Cut(claims, "\n## ")
	if !ok || !more {
		t.Fatal("no section of claims")
	}
	exists := map[string]bool{}
	def := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, file := range repositoryFiles(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(docsRoot, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range def.FindAllSubmatch(text, -1) {
			exists[string(m[1])] = true
		}
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	rows := 0
	for _, line := range strings.Split(claims, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| claim") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, m := range tests {
			if !exists[m[1]] {
				t.Errorf("there is no %s: %s", m[1], line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d claims were read", rows)
	}
}
