package mapreduce

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/keyorder"
)

func TestKeysSplitLines(t *testing.T) {
	for name, c := range map[string]struct {
		fields     int
		line       string
		key, value string
		bare       bool
	}{
		"the first field by default":                 {0, "a\tb\tc", "a", "b\tc", false},
		"the first field":                            {1, "a\tb\tc", "a", "b\tc", false},
		"two fields":                                 {2, "a\tb\tc", "a\tb", "c", false},
		"an empty value":                             {2, "a\tb\t", "a\tb", "", false},
		"as many fields as the key: no value":        {2, "a\tb", "a\tb", "", true},
		"fewer fields than the key":                  {3, "a\tb", "a\tb", "", true},
		"one field of three":                         {3, "a", "a", "", true},
		"an empty line":                              {2, "", "", "", true},
		"empty fields count":                         {2, "\t\tc", "\t", "c", false},
		"a line of tabs with all of them in the key": {3, "\t\t", "\t\t", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			k := Keys{Fields: c.fields}
			key, value, bare := k.Split([]byte(c.line))
			if string(key) != c.key || string(value) != c.value || bare != c.bare {
				t.Errorf("Split(%q) = %q, %q, %v; want %q, %q, %v", c.line, key, value, bare, c.key, c.value, c.bare)
			}
		})
	}
}

func TestKeysPartition(t *testing.T) {
	const n = 4
	of := func(key string) int { return Partition([]byte(key), n) } // TestHashKeyMatchesHadoop checks its values
	limits := []string{"b", "b\t5", "é"}
	for name, c := range map[string]struct {
		keys Keys
		key  string
		want int
	}{
		"the whole key by default":                    {Keys{Fields: 2}, "hello\t1", of("hello\t1")},
		"its first field":                             {Keys{Fields: 2, PartitionFields: 1}, "hello\t1", of("hello")},
		"its first two fields":                        {Keys{Fields: 3, PartitionFields: 2}, "a\thello\t1", of("a\thello")},
		"all its fields":                              {Keys{Fields: 2, PartitionFields: 2}, "a\tb", of("a\tb")},
		"a key with fewer fields":                     {Keys{Fields: 3, PartitionFields: 2}, "hello", of("hello")},
		"below the first partition key":               {Keys{PartitionKeys: limits}, "az", 0},
		"an empty key":                                {Keys{PartitionKeys: limits}, "", 0},
		"a partition key is the first of its reducer": {Keys{PartitionKeys: limits}, "b", 1},
		"between two partition keys":                  {Keys{PartitionKeys: limits}, "b\t4", 1},
		"a second field decides where one is given":   {Keys{PartitionKeys: limits}, "b\t5", 2},
		"an ASCII letter is below":                    {Keys{PartitionKeys: limits}, "z", 2},
		"the last partition key":                      {Keys{PartitionKeys: limits}, "é", 3},
		"above all":                                   {Keys{PartitionKeys: limits}, "\xff", 3},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.keys.Partition([]byte(c.key), n); got != c.want {
				t.Errorf("reducer %d, want %d", got, c.want)
			}
		})
	}
}

func TestSpecRefusesKeys(t *testing.T) {
	valid := func(k Keys) TaskSpec {
		s := TaskSpec{Version: SpecVersion, Kind: KindMap, WorkDir: "/w", TempDir: "/t", Result: "/r", Reduces: 3, Keys: k, Program: Program{Argv: []string{"cat"}},
			Input: &MapInput{File: "/in", Pieces: []Piece{{Codec: CodecNone}}}, MapOutput: &MapOutputPaths{Data: "/d", Index: "/i", Codec: CodecNone}}
		return s.WithDefaults()
	}
	ok := valid(Keys{Fields: 2, PartitionKeys: []string{"a", "b"}})
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]TaskSpec{
		"keys.fields is 65":                                 valid(Keys{Fields: keyorder.MaxFields + 1}),
		"keys.fields is -1":                                 valid(Keys{Fields: -1}),
		"keys.partition_fields is 3, a key has 2":           valid(Keys{Fields: 2, PartitionFields: 3}),
		"keys.partition_fields is 2, a key has 1":           valid(Keys{PartitionFields: 2}),
		"both partition_fields and partition_keys":          valid(Keys{PartitionFields: 1, PartitionKeys: []string{"a", "b"}}),
		"keys.partition_keys has 1 keys, 3 reducers need 2": valid(Keys{PartitionKeys: []string{"a"}}),
		`keys.partition_keys[1] "a" is not above`:           valid(Keys{PartitionKeys: []string{"b", "a"}}),
		`keys.partition_keys[1] "b" is not above`:           valid(Keys{PartitionKeys: []string{"b", "b"}}),
		"the keys of built-in wordcount have one field":     func() TaskSpec { s := valid(Keys{Fields: 2}); s.Program = Program{Builtin: "wordcount"}; return s }(),
		"keys are for map tasks with reducers":              func() TaskSpec { s := valid(Keys{Fields: 2}); s.Reduces = 0; return s }(),
		`keys.order is ["numeric"]`:                         valid(Keys{Order: []string{"numeric"}}),
		"keys.order has 1 entries, a key has 2 fields":      valid(Keys{Fields: 2, Order: []string{"number"}}),
		`keys.partition_keys[1] "10" is not above`:          valid(Keys{Order: []string{"number desc"}, PartitionKeys: []string{"9", "10"}}),
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// BenchmarkEmit splits a mapper's lines and chooses their reducers.
func BenchmarkEmit(b *testing.B) {
	var lines [][]byte
	for i := range 1 << 16 {
		lines = append(lines, []byte(fmt.Sprintf("user%d\t%d\tGET /index.html", i*7919%5000, i*104729%86400)))
	}
	var limits []string
	for i := range 63 {
		limits = append(limits, fmt.Sprintf("user%03d", (i+1)*15))
	}
	for _, c := range []struct {
		name string
		keys Keys
	}{{"plain", Keys{}}, {"secondary", Keys{Fields: 2, PartitionFields: 1}}, {"ranges", Keys{PartitionKeys: limits}}} {
		b.Run(c.name, func(b *testing.B) {
			sum := 0
			for i := 0; b.Loop(); i++ {
				key, _, _ := c.keys.Split(lines[i&(1<<16-1)])
				sum += c.keys.Partition(key, 64)
			}
			if sum < 0 {
				b.Fatal(sum)
			}
		})
	}
}
