package preempt

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Each block but the last ends in the middle of a line, and the expected result has every line
// once, with its length.
func TestWantResultMatchesInput(t *testing.T) {
	s := &Scenario{Maps: 2}
	text := s.inputText()
	if len(text) != 2*blockBytes || blockBytes%(linesPerBlock+1) == 0 {
		t.Fatalf("%d bytes", len(text))
	}
	all := strings.Split(text, "\n")
	if len(all[0])+1 != blockBytes/linesPerBlock {
		t.Errorf("a line has %d bytes, a block %d lines", len(all[0])+1, linesPerBlock)
	}
	want := strings.Split(strings.TrimSuffix(s.wantResult(), "\n"), "\n")
	if len(want) != len(all) || want[0] != "00000000\t42" {
		t.Errorf("%d lines for %d, the first %q", len(want), len(all), want[0])
	}
	if last := fmt.Sprintf("%08d\t%d", len(all)-1, len(all[len(all)-1])); want[len(want)-1] != last {
		t.Errorf("the last is %q, want %q", want[len(want)-1], last)
	}
}

// The output of `job status -json` is read correctly, and a value that is not an integer is not
// taken for 0.
func TestJSONInt64(t *testing.T) {
	for text, want := range map[string]jsonInt64{
		`{"Job": {"deadline_ms": "1795298400000"}}`: 1795298400000,
		`{"Job": {"deadline_ms": 12}}`:              12,
		`{"Job": {}}`:                               0,
	} {
		var m jobSummary
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.Job.DeadlineMS != want {
			t.Errorf("%s: %d, %v", text, m.Job.DeadlineMS, err)
		}
	}
	for _, text := range []string{`"12x"`, `""`, `"1.5"`, `1e3`, `{}`, `"99999999999999999999"`} {
		var m jobSummary
		if err := json.Unmarshal(fmt.Appendf(nil, `{"Job": {"deadline_ms": %s}}`, text), &m); err == nil {
			t.Errorf("%s is read as %d", text, m.Job.DeadlineMS)
		}
	}
}
