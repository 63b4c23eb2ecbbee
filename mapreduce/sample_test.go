package mapreduce

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/keyorder"
)

func TestPartitionKeysOfASample(t *testing.T) {
	numbers := func(n int) (lines []string) {
		for i := range n {
			lines = append(lines, fmt.Sprintf("%04d\t%d", i*7919%n, i))
		}
		return lines
	}
	for name, c := range map[string]struct {
		lines  []string
		fields int
		n      int
		want   []string
		err    string
	}{
		"one reducer":                        {numbers(10), 1, 1, []string{}, ""},
		"four of a thousand":                 {numbers(1000), 1, 4, []string{"025", "05", "075"}, ""},
		"as many keys as reducers":           {[]string{"a", "b", "c"}, 1, 3, []string{"b", "c"}, ""},
		"a frequent key is not divided":      {[]string{"a", "m", "m", "m", "m", "m", "z"}, 1, 3, []string{"m", "z"}, ""},
		"one that is the smallest":           {[]string{"a", "a", "a", "a", "b", "c"}, 1, 3, []string{"b", "c"}, ""},
		"one that is the largest":            {[]string{"a", "b", "z", "z", "z", "z"}, 1, 3, []string{"b", "z"}, ""},
		"only the fields of the key count":   {[]string{"a\tx\t1", "a\ty\t2", "a\ty\t3", "a\tz\t4"}, 2, 3, []string{"a\ty", "a\tz"}, ""},
		"the value does not":                 {[]string{"a\tx", "a\ty"}, 1, 2, nil, "the sample of 2 lines has 1 different keys, and 2 reducers"},
		"an empty sample":                    {nil, 1, 2, nil, "the sample of 0 lines"},
		"a beginning is enough":              {[]string{"alexander", "barbara"}, 1, 2, []string{"b"}, ""},
		"the rest of a key that continues":   {[]string{"ann", "anna"}, 1, 2, []string{"anna"}, ""},
		"not within a letter":                {[]string{"aé", "aê"}, 1, 2, []string{"aê"}, ""},
		"not UTF-8, but not where it counts": {[]string{"a\xff", "b\xff"}, 1, 2, []string{"b"}, ""},
		"not UTF-8":                          {[]string{"a\xfe", "a\xff"}, 1, 2, nil, `the key "a\xff" is not UTF-8`},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewKeySample(c.fields, nil)
			for _, line := range c.lines {
				s.Add([]byte(line))
			}
			got, err := s.PartitionKeys(c.n)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%q, %v; want %s", got, err, c.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// Samples of keys with an order: the partition keys consist of whole numbers, and of prefixes of
// ascending text.
func TestPartitionKeysInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		lines []string
		order []string
		n     int
		want  []string
	}{
		"numbers":                           {[]string{"10", "9", "100", "8"}, []string{"number"}, 4, []string{"9", "10", "100"}},
		"the largest first":                 {[]string{"10", "9", "100", "8"}, []string{"number desc"}, 4, []string{"10", "9", "8"}},
		"text backwards":                    {[]string{"alexander", "barbara"}, []string{"text desc"}, 2, []string{"alexander"}},
		"a beginning of text":               {[]string{"alexander\t1", "barbara\t2"}, []string{"text", "number desc"}, 2, []string{"b"}},
		"the field that differs":            {[]string{"b\t7\tx", "b\t12\ty"}, []string{"text", "number desc", "text"}, 2, []string{"b\t7"}},
		"a key that goes on":                {[]string{"b", "b\t12"}, []string{"text", "number desc"}, 2, []string{"b\t12"}},
		"below zero, and nothing":           {[]string{"", "-1"}, []string{"number"}, 2, []string{""}},
		"numbers that are equal but differ": {[]string{"1.0", "1"}, []string{"number"}, 2, []string{"1.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewKeySample(len(c.order), ordered(c.order...))
			for _, line := range c.lines {
				s.Add([]byte(line))
			}
			if got, err := s.PartitionKeys(c.n); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// ordered returns the order of entries.
func ordered(entries ...string) keyorder.Order {
	o, _ := keyorder.Parse(entries)
	return o
}

// For any sample and order: the partition keys are valid, no range is empty, and none has more
// lines than its share plus the lines of the most frequent key.
func TestPartitionKeysDivideAnySample(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.StringMatching(`([ab\x{01}é]{0,4}|-?[0-9]{1,2})(\t([ab]{0,2}|[0-9]{1,3}))?`), 1, 300).Draw(t, "lines")
		k := Keys{Fields: rapid.IntRange(1, 2).Draw(t, "fields")}
		if rapid.Bool().Draw(t, "order") {
			k.Order = rapid.SliceOfN(rapid.SampledFrom(keyorder.Entries()), k.Fields, k.Fields).Draw(t, "entries")
		}
		s, count := NewKeySample(k.Fields, ordered(k.Order...)), map[string]int{}
		for _, line := range lines {
			s.Add([]byte(line))
			key, _, _ := k.Split([]byte(line))
			count[string(key)]++
		}
		n := rapid.IntRange(1, min(len(count), 8)).Draw(t, "reducers")
		var err error
		if k.PartitionKeys, err = s.PartitionKeys(n); err != nil {
			t.Fatal(err)
		}
		if err := k.check(n); err != nil {
			t.Fatal(err)
		}
		partition := func(key []byte) int { return k.Partition(key, n) }
		if coder := k.Coder(n); coder != nil {
			partition = func(key []byte) int { part, _ := coder.Encode(key); return part }
		}
		most, sizes := 0, make([]int, n)
		for key, c := range count {
			most = max(most, c)
			sizes[partition([]byte(key))] += c
		}
		for r, size := range sizes {
			if size == 0 {
				t.Errorf("reducer %d of %v gets nothing by %q", r, sizes, k.PartitionKeys)
			}
			if limit := len(lines)/n + 1 + 2*most; size > limit {
				t.Errorf("reducer %d of %v gets more than %d by %q", r, sizes, limit, k.PartitionKeys)
			}
		}
	})
}

// A sample that keeps only a part of the lines still divides all lines, and is the same each time.
func TestLargeSample(t *testing.T) {
	choose := func() []string {
		s := NewKeySample(1, nil)
		for i := range 4 * maxSampledKeys {
			s.Add(fmt.Appendf(nil, "%06d", i))
		}
		if len(s.kept) != maxSampledKeys || s.Lines() != 4*maxSampledKeys {
			t.Fatalf("%d of %d kept", len(s.kept), s.Lines())
		}
		got, err := s.PartitionKeys(4)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	k := Keys{PartitionKeys: choose()}
	var sizes [4]int
	for i := range 4 * maxSampledKeys {
		sizes[k.Partition(fmt.Appendf(nil, "%06d", i), 4)]++
	}
	for _, size := range sizes {
		if size < maxSampledKeys*95/100 || size > maxSampledKeys*105/100 {
			t.Errorf("the reducers get %v", sizes)
		}
	}
	if again := choose(); !slices.Equal(again, k.PartitionKeys) {
		t.Errorf("%q, then %q", k.PartitionKeys, again)
	}
}
