package enum

import "testing"

func TestName(t *testing.T) {
	type set int
	names := []string{1: "first", 3: "third"}
	for value, want := range map[set]string{-1: "set(-1)", 0: "set(0)", 1: "first", 2: "set(2)", 3: "third", 4: "set(4)"} {
		if got := Name("set", value, names); got != want {
			t.Errorf("value %d is %q, want %q", int(value), got, want)
		}
	}
}
