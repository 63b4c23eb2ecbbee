package jobspec

import (
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzDecode reads canonical JSON as a coordinator gets it from anybody, and as it has stored it.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"j","tenant":"a","stages":[{"name":"s","kind":"group","command":["x"],"secrets":[{"env":"T","ref":"secret:x@2"}]}]}`))
	f.Add([]byte(`{"version":1,"name":"m","input":{"paths":["hdfs:///in"]},"output":{"path":"hdfs:///out"},"stages":[{"name":"a","kind":"map"},{"name":"b","kind":"reduce","after":["a"]}]}`))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if j, err := DecodeStored(b); err == nil {
			_, _ = Encode(j)
		}
		j, err := Decode(b)
		if err != nil {
			return
		}
		SetDefaults(j)
		if len(Validate(j)) > 0 {
			return
		}
		text, err := Encode(j)
		if err != nil {
			t.Fatalf("a valid job has no canonical form: %v", err)
		}
		if _, err := Decode(text); err != nil {
			t.Fatalf("%s is refused: %v", text, err)
		}
	})
}

func FuzzParseSecretRef(f *testing.F) {
	for _, s := range []string{"secret:x", "secret:x@1", "file:a/x", "file:x", "secret:@", "x"} {
		f.Add(s)
	}
	fuzztest.Run(f, func(t *testing.T, s string) {
		r, err := ParseSecretRef(s, "a")
		if err == nil && (r.Name == "" || len(r.Name) > 128 || r.Name[0] == '.' || !r.Stored && r.Version != 0) {
			t.Errorf("%q means %+v", s, r)
		}
	})
}
