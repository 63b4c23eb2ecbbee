package mapreduce

import "testing"

// The hashes are those of java.util.Arrays.hashCode(byte[]), which computes
// the same sum as WritableComparator.hashBytes.
func TestHashKeyMatchesHadoop(t *testing.T) {
	for name, c := range map[string]struct {
		key           string
		hash          int32
		of4, of1, of7 int
	}{
		"an empty key hashes to one":           {"", 1, 1, 0, 1},
		"one letter":                           {"a", 128, 0, 0, 2},
		"a word":                               {"hello", 127791473, 1, 0, 5},
		"the sum wraps at 32 bits":             {"hello world, this is a longer key", -1262659566, 2, 0, 2},
		"bytes above 127 count as negative":    {"é", -1017, 3, 0, 0},
		"a byte 0xff is minus one":             {"\xff", 30, 2, 0, 2},
		"a zero byte still multiplies":         {"\x00", 31, 3, 0, 3},
		"a tab is a byte like any other":       {"\t", 40, 0, 0, 5},
		"a digit, as in the classic test keys": {"1", 80, 0, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hashKey([]byte(c.key)); got != c.hash {
				t.Errorf("HashKey(%q) = %d, want %d", c.key, got, c.hash)
			}
			for n, want := range map[int]int{4: c.of4, 1: c.of1, 7: c.of7} {
				if got := Partition([]byte(c.key), n); got != want {
					t.Errorf("Partition(%q, %d) = %d, want %d", c.key, n, got, want)
				}
			}
		})
	}
}
