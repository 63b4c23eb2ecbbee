package preempt

import (
	"encoding/json"
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

// What `job status -json` prints is read as it is meant, and what is no number is
// not taken for 0.
func TestNumbersOfAStatusAreReadOrRefused(t *testing.T) {
	for text, want := range map[string]number{
		`{"Job": {"deadline_ms": "1795298400000"}}`: 1795298400000,
		`{"Job": {"deadline_ms": 12}}`:              12,
		`{"Job": {}}`:                               0,
	} {
		var m summary
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.Job.DeadlineMS != want {
			t.Errorf("%s: %d, %v", text, m.Job.DeadlineMS, err)
		}
	}
	for _, text := range []string{`"12x"`, `""`, `"1.5"`, `1e3`, `{}`, `"99999999999999999999"`} {
		var m summary
		if err := json.Unmarshal(fmt.Appendf(nil, `{"Job": {"deadline_ms": %s}}`, text), &m); err == nil {
			t.Errorf("%s is read as %d", text, m.Job.DeadlineMS)
		}
	}
}
