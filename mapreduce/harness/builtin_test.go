package harness

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

// The lines that eachMatch finds in a whole text are the lines that match one by one.
func TestEachMatchFindsWhatLinesMatch(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	patterns := []string{"ab", "^ab", "ab$", "^ab$", "a.b", "(?i)ab", "b|ab", "", "^$", "a\\nb", "a\nb", "\uFFFDa", "aé", "ab+c?", "(?m)^a$", "x{2}"}
	alphabet := []byte("aabbbcx\n\n \xff\xc3\xa9A")
	found := 0
	for range 3000 {
		re := regexp.MustCompile(patterns[random.IntN(len(patterns))])
		text := make([]byte, random.IntN(200))
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		text = append(text, '\n')
		var want, got []string
		for line := range bytes.Lines(text) {
			if line = line[:len(line)-1]; re.Match(line) {
				want = append(want, string(line))
			}
		}
		if err := eachMatch(text, re, func(line []byte) error { got = append(got, string(line)); return nil }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q in %q: %q, want %q", re, text, got, want)
		}
		found += len(got)
	}
	if found == 0 {
		t.Error("nothing was found")
	}
}
