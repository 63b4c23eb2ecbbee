package main

import (
	"os"
	"strings"
	"testing"
)

// TestPageShowsThisProgram: the page that explains the policy shows the code that is compiled here.
func TestPageShowsThisProgram(t *testing.T) {
	page, err := os.ReadFile("../../docs/develop/own-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for i, part := range strings.Split(string(page), "```") {
		code, ok := strings.CutPrefix(part, "go\n")
		if i%2 == 0 || !ok {
			continue
		}
		blocks++
		if !strings.Contains(string(program), code) {
			t.Errorf("examples/own-policy/main.go does not have this block of the page:\n%s", code)
		}
	}
	if blocks == 0 {
		t.Error("the page shows no Go code")
	}
}

// TestOwnPolicyRuns: every decision passes the simulator's check, and all jobs end.
func TestOwnPolicyRuns(t *testing.T) {
	if err := simulate(firstFit{}); err != nil {
		t.Error(err)
	}
}
