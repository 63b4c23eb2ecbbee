package jobspec

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
)

func TestParseAndFormatQuantities(t *testing.T) {
	cases := map[string]struct {
		parse func(string) (int64, error)
		in    string
		want  int64
		bad   bool
	}{
		"millicores":              {ParseCPU, "500m", 500, false},
		"cores with a fraction":   {ParseCPU, "0.25", 250, false},
		"negative cores":          {ParseCPU, "-1", 0, true},
		"not a number of cores":   {ParseCPU, "NaN", 0, true},
		"infinite cores":          {ParseCPU, "Inf", 0, true},
		"binary size":             {ParseSize, "1.5GiB", 3 << 29, false},
		"decimal size with space": {ParseSize, "2 MB", 2_000_000, false},
		"bare bytes":              {ParseSize, "4096", 4096, false},
		"too large a size":        {ParseSize, "1e30", 0, true},
		"no size":                 {ParseSize, "", 0, true},
		"rate":                    {ParseRate, "20MiB/s", 20 << 20, false},
		"rate without a second":   {ParseRate, "20MiB", 0, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.parse(c.in)
			if (err != nil) != c.bad || got != c.want {
				t.Errorf("%q: %d, %v", c.in, got, err)
			}
		})
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"map", "reduce", "group"}
	for have, want := range map[string]string{"mpa": "map", "redcue": "reduce", "Group": "group", "banana": "", "": ""} {
		if got := Suggest(have, known); got != want {
			t.Errorf("%q: %q, want %q", have, got, want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"an unknown field": `{"version":1,"nome":"x"}`,
		"a newer version":  `{"version":99,"name":"x"}`,
		"two jobs":         `{"version":1}{"version":1}`,
		"one brace more":   `{"version":1}}`,
		"a bracket more":   `{"version":1} ]`,
		"no JSON":          `job "x" {}`,
		"a bare duration":  `{"version":1,"runtime_bound":5}`,
	} {
		if _, err := Decode([]byte(in)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// editsBetween is editDistance from its definition, without a table.
func editsBetween(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	n, k := len(a)-1, len(b)-1
	if a[n] == b[k] {
		return editsBetween(a[:n], b[:k])
	}
	d := 1 + min(editsBetween(a[:n], b[:k]), editsBetween(a[:n], b), editsBetween(a, b[:k]))
	if n > 0 && k > 0 && a[n] == b[k-1] && a[n-1] == b[k] {
		d = min(d, 1+editsBetween(a[:n-1], b[:k-1]))
	}
	return d
}

func TestEditDistanceMatchesItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 2))
	word := func() string {
		b := make([]byte, r.IntN(7))
		for i := range b {
			b[i] = "abc"[r.IntN(3)]
		}
		return string(b)
	}
	for range 500 {
		a, b := word(), word()
		if got, want := editDistance(a, b), editsBetween(a, b); got != want || editDistance(b, a) != want {
			t.Fatalf("%q and %q: %d, back %d, want %d", a, b, got, editDistance(b, a), want)
		}
	}
}

// What is shown to people is parsed back to within a twentieth of the unit it is shown in, and a
// duration keeps its value in JSON.
func TestFormattedQuantitiesParseBack(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 3))
	for range 2000 {
		n := r.Int64N(1 << (1 + r.IntN(50)))
		unit := int64(1)
		for n/unit >= 1024 {
			unit *= 1024
		}
		if down, err := ParseSize(FormatSizeDown(n)); err != nil || down > n || down < n-n/10-1 {
			t.Fatalf("size %d rounded down as %s: %d, %v", n, FormatSizeDown(n), down, err)
		}
		size, err := ParseSize(FormatSize(n))
		if err != nil || max(size-n, n-size) > unit/20+1 {
			t.Fatalf("size %d as %s: %d, %v", n, FormatSize(n), size, err)
		}
		if rate, err := ParseRate(FormatRate(n)); err != nil || rate != size {
			t.Fatalf("rate %d as %s: %d, %v", n, FormatRate(n), rate, err)
		}
		b, err := json.Marshal(Duration(n))
		if err != nil {
			t.Fatal(err)
		}
		var d Duration
		if err := json.Unmarshal(b, &d); err != nil || d != Duration(n) {
			t.Fatalf("duration %d as %s: %d, %v", n, b, d, err)
		}
		if n >= 1<<39 {
			continue // more cores than ParseCPU takes
		}
		if cpu, err := ParseCPU(FormatCPU(n)); err != nil || cpu != n {
			t.Fatalf("%d millicores as %s: %d, %v", n, FormatCPU(n), cpu, err)
		}
	}
}

// What a newer version stored is read back without the fields that this one does not know.
func TestDecodeStored(t *testing.T) {
	j, err := DecodeStored([]byte(`{"version":99,"name":"x","unknown":1}`))
	if err != nil || j.Name != "x" {
		t.Errorf("%+v, %v", j, err)
	}
	if _, err := DecodeStored([]byte(`{"name":1}`)); err == nil {
		t.Error("a name that is a number was read")
	}
}
