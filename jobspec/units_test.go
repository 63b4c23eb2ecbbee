package jobspec

import "testing"

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
		"no JSON":          `job "x" {}`,
		"a bare duration":  `{"version":1,"runtime_bound":5}`,
	} {
		if _, err := Decode([]byte(in)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
