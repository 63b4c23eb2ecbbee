package preempt

import (
	"fmt"
	"strings"
	"testing"
)

// Each block but the last ends in the middle of a line, and the wanted result has
// every line once, with its length.
func TestTheWantedResultIsThatOfTheText(t *testing.T) {
	s := &Scene{Maps: 2}
	text := s.text()
	if len(text) != 2*blockBytes || blockBytes%(lines+1) == 0 {
		t.Fatalf("%d bytes", len(text))
	}
	all := strings.Split(text, "\n")
	if len(all[0])+1 != blockBytes/lines {
		t.Errorf("a line has %d bytes, a block %d lines", len(all[0])+1, lines)
	}
	want := strings.Split(strings.TrimSuffix(s.Want(), "\n"), "\n")
	if len(want) != len(all) || want[0] != "00000000\t42" {
		t.Errorf("%d lines for %d, the first %q", len(want), len(all), want[0])
	}
	if last := fmt.Sprintf("%08d\t%d", len(all)-1, len(all[len(all)-1])); want[len(want)-1] != last {
		t.Errorf("the last is %q, want %q", want[len(want)-1], last)
	}
}
