package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
)

// Files that somebody asks for and that are not here leave no trace: the memory of what clients rely on is one
// for all, and who fills it would have the files of others collected between question and submission.
func TestFilesThatAreNotHereAreNotRemembered(t *testing.T) {
	f := facts.New()
	s := &storedFiles{view: func(fn func(*facts.Facts)) { fn(f) }, now: time.Now, asked: map[string]int64{}}
	for i := range maxDigests {
		if s.ask(t.Context(), fmt.Sprintf("sha256:%064x", i)) {
			t.Fatal("a file is here that nobody sent")
		}
	}
	if len(s.asked) > 0 {
		t.Errorf("%d files are remembered that are not here", len(s.asked))
	}
}
