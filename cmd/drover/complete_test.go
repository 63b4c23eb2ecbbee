package main

import (
	"slices"
	"strings"
	"testing"
)

// TestCompletionCandidates: what a shell offers for the last word, without a coordinator. A line that
// ends in a space completes an empty word.
func TestCompletionCandidates(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // all candidates, or with … some of them
	}{
		{"", "… job task node tenant scheduler sim"},
		{"jo", "job"},
		{"job s", "status stop"},
		{"job status -", "-help -json"},
		{"job status --j", "--json"},
		{"job list -state ", "pending running committing succeeded failed stopped"},
		{"job list -state s", "succeeded stopped"},
		{"job history -state ", "succeeded failed stopped"},
		{"job list -limit ", ""},
		{"job list -all -st", "-state"},
		{"job list -limit 3 -n", "-name"},
		{"job list -limit=3 -n", "-name"},
		{"job status wc ", ""},
		{"job run ", ""},
		{"task suspend -level ", "frozen swapped checkpointed"},
		{"task suspend -level c", "checkpointed"},
		{"tls cert -kind ", "user node coordinator"},
		{"tls cert -kind n", "node"},
		{"completion ", "bash zsh fish"},
		{"config validate ", "coordinator node"},
		{"config init ", "coordinator node"},
		{"operator snapshot ", "save inspect restore"},
		{"operator server l", "list"},
		{"-no-color job l", "list logs"},
		{"-address", "-address"},
		{"-", "… -address -tls-ca -token-file -help"},
		{"nothing ", "… job task node"},
		{"job list -nothing ", ""},
	} {
		words := strings.Split(c.line, " ")
		out, _, err := runNowhere(t, append([]string{"__complete"}, words...)...)
		got, want := strings.Fields(out), strings.Fields(c.want)
		some := len(want) > 0 && want[0] == "…"
		slices.Sort(got)
		slices.Sort(want)
		ok := slices.Equal(got, want)
		if some {
			ok = !slices.ContainsFunc(want, func(w string) bool { return w != "…" && !slices.Contains(got, w) })
		}
		if err != nil || !ok {
			t.Errorf("drover %s<TAB>: %q, %v; want %q", c.line, got, err, c.want)
		}
	}
}

// TestHiddenCommandsAreNotOffered: what only Drover itself starts is not completed.
func TestHiddenCommandsAreNotOffered(t *testing.T) {
	out, _, err := runNowhere(t, "__complete", "")
	if err != nil || strings.Contains(out, "__") || strings.Contains(out, "bench-") || slices.Contains(strings.Fields(out), "help") {
		t.Errorf("%v\n%s", err, out)
	}
}
