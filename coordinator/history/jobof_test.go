package history

import "testing"

// The number of a line's job is that of the member, not of a text that looks like it.
func TestJobOf(t *testing.T) {
	encoded, err := encode(&Job{Version: 1, Cluster: `a,"job":7`, Job: 3, Name: `,"job":8`})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]uint64{
		string(encoded):                                          3,
		`{"version":1,"cluster":"c","job":1}`:                    1,
		`{"version":1,"job":18446744073709551615,"x":{"job":2}}`: 1<<64 - 1,
		`{"version":1,"job":18446744073709551616}`:               0,
		`{"version":1,"job":"4"}`:                                0,
		`{"version":1,"job":`:                                    0,
		`{"version":1}`:                                          0,
		``:                                                       0,
	} {
		if got, ok := jobOf([]byte(line)); got != want && ok || ok != (want > 0) {
			t.Errorf("%s: job %d, %t, want %d", line, got, ok, want)
		}
	}
}
