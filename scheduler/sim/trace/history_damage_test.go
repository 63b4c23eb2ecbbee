package trace

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/internal/seed"
)

// However a coordinator's file is damaged, each job that the simulator replays is one that was
// written, unchanged; a damaged line is an error with its number.
func TestDamagedHistoryIsNotReplayed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	var file []byte
	for line := range strings.Lines(strings.Repeat(historyLines, 20)) {
		file = append(append(file, linesum.Seal([]byte(strings.TrimSuffix(line, "\n")))...), '\n')
	}
	whole, err := ReadHistory(bytes.NewReader(file), Options{Name: "f"})
	if err != nil {
		t.Fatal(err)
	}
	for range bitrot.Rounds(t, 2) {
		bad, what := bitrot.Damage(random, file)
		got, err := ReadHistory(bytes.NewReader(bad), Options{Name: "f", SkipBad: true})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(got.Jobs) < len(whole.Jobs) && got.Bad == 0 && !strings.HasPrefix(what, "cut") && !strings.HasPrefix(what, "page") {
			t.Fatalf("%s: %d of %d jobs, and nothing is named", what, len(got.Jobs), len(whole.Jobs))
		}
		for _, j := range got.Jobs {
			known := false
			for _, w := range whole.Jobs[:2] { // the others are equal to these
				known = known || cmp.Equal(j, w)
			}
			if !known {
				t.Fatalf("%s: this job never was: %+v", what, j)
			}
		}
	}
}
