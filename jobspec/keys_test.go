package jobspec

import (
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

func TestSetPartitionKeys(t *testing.T) {
	for name, c := range map[string]struct {
		text          string
		fields, tasks int
		want          []string
		err           string // its beginning
	}{
		"one key for each task but the first": {"g\np\n", 1, 3, []string{"g", "p"}, ""},
		"without a last line end":             {"g\np", 1, 3, []string{"g", "p"}, ""},
		"fields":                              {"g\tb\ng\tc\n", 2, 3, []string{"g\tb", "g\tc"}, ""},
		"fewer fields than a key":             {"g\n", 2, 2, []string{"g"}, ""},
		"by bytes":                            {"Z\na\né\n", 1, 4, []string{"Z", "a", "é"}, ""},
		"one task":                            {"", 1, 1, []string{}, ""},
		"too few":                             {"g\n", 1, 3, nil, "k.txt: 3 tasks need 2 partition keys, not 1; give 2, or write tasks = 2"},
		"none":                                {"", 1, 3, nil, "k.txt: 3 tasks need 2 partition keys, not 0"},
		"too many":                            {"g\np\n", 1, 2, nil, "k.txt: 2 tasks need 1 partition keys, not 2"},
		"not in order":                        {"a\nc\nb\n", 1, 4, nil, `k.txt:3: the partition key "b" is not above the one before, "c"; sort`},
		"twice":                               {"a\na\n", 1, 3, nil, `k.txt:2: the partition key "a" is not above`},
		"not in the order of a language":      {"a\nZ\n", 1, 3, nil, `k.txt:2: the partition key "Z" is not above`},
		"an empty line":                       {"a\n\nb\n", 1, 4, nil, "k.txt:2: the partition key \"\" is empty"},
		"a line with its value":               {"a\nb\t1\n", 1, 3, nil, `k.txt:2: the partition key "b\t1" has 2 fields, and a key has 1; give the key alone`},
		"not UTF-8":                           {"a\nb\xff\n", 1, 3, nil, `k.txt:2: the partition key "b\xff" is not UTF-8`},
		"keys that are too long together":     {strings.Repeat("a", MaxPartitionKeyBytes) + "\nb\n", 1, 3, nil, "k.txt:2: the partition keys have more than 64KiB"},
		"a file that is far too long":         {strings.Repeat("a\n", MaxPartitionKeyBytes), 1, 3, nil, "k.txt: the partition keys have more than 64KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Stage{Kind: KindReduce, Tasks: c.tasks, KeyFields: c.fields, PartitionFile: "k.txt"}
			err := s.SetPartitionKeys([]byte(c.text))
			if c.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), c.err) {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil || !slices.Equal(s.PartitionKeys, c.want) || s.PartitionFile != "" {
				t.Errorf("%q, file %q, %v", s.PartitionKeys, s.PartitionFile, err)
			}
		})
	}
}

// FuzzPartitionKeys reads a file of partition keys: what is accepted is valid in a job, and is the file.
func FuzzPartitionKeys(f *testing.F) {
	for _, text := range []string{"", "a\nb\n", "a\tb\nc", "b\na\n", "\n", "a\r\nb\r\n", "\xff\n", "é\nê\n"} {
		f.Add([]byte(text))
	}
	fuzztest.Run(f, func(t *testing.T, text []byte) {
		s := Stage{Name: "r", Kind: KindReduce, Command: []string{"r"}, Tasks: 1 + len(strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")), KeyFields: 2, PartitionFile: "k"}
		if len(text) == 0 {
			s.Tasks = 1
		}
		if s.Tasks > MaxReduceTasks || s.SetPartitionKeys(text) != nil {
			return
		}
		if got := strings.Join(s.PartitionKeys, "\n"); got != strings.TrimSuffix(string(text), "\n") {
			t.Errorf("%q became %q", text, s.PartitionKeys)
		}
		j := &Job{Name: "j", Input: &Input{Paths: []string{"file:///in"}}, Stages: []Stage{{Name: "m", Kind: KindMap, Command: []string{"m"}}, s}}
		SetDefaults(j)
		if ps := Validate(j); len(ps) > 0 {
			t.Errorf("accepted, and then: %v", ps)
		}
	})
}
