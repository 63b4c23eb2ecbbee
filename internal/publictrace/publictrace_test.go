package publictrace

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// The files match SHA256SUMS and README.md, and each result has a line for each job.
func TestFilesAreAsDescribed(t *testing.T) {
	read := func(name string) string {
		b, err := data.ReadFile("data/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	sums, readme := read("SHA256SUMS"), read("README.md")
	for name, jobs := range map[string]int{KTHSP2: 28481, KTHSP2Waits: 28481, FB2010: 24442, FB2010Completions: 24442} {
		if line := fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(read(name))), name); !strings.Contains(sums, line) {
			t.Errorf("SHA256SUMS lacks %q", line)
		}
		if !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("README.md does not say where %s is from", name)
		}
		if n := len(Rows(t, name)); n != jobs {
			t.Errorf("%s has %d jobs, want %d", name, n, jobs)
		}
	}
}
