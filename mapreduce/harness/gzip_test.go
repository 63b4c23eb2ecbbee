package harness

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
)

func TestGzipMembersAndWhatFollowsThem(t *testing.T) {
	member := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := io.WriteString(z, text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	zeros, one, two := strings.Repeat("\x00", 70_000), member("a\nb\n"), member("c\n")
	for name, tc := range map[string]struct {
		file, want string
		ok         bool
	}{
		"one member":                {one, "a\nb\n", true},
		"two members":               {one + two, "a\nb\nc\n", true},
		"an empty member between":   {one + member("") + two, "a\nb\nc\n", true},
		"zeros at the end":          {one + two + zeros, "a\nb\nc\n", true},
		"zeros between":             {one + zeros + two, "a\nb\nc\n", true},
		"rubbish at the end":        {one + "rubbish", "a\nb\n", false},
		"rubbish after zeros":       {one + zeros + "rubbish", "a\nb\n", false},
		"a member without its end":  {one + two[:len(two)-3], "a\nb\n", false},
		"a header without its end":  {one + two[:5], "a\nb\n", false},
		"a checksum that is not so": {one[:len(one)-5] + "\x01" + one[len(one)-4:], "", false},
	} {
		for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader} {
			var got []byte
			z, err := newGzipReader(wrap(strings.NewReader(tc.file)))
			if err == nil {
				got, err = io.ReadAll(z)
			}
			if (err == nil) != tc.ok || !strings.HasPrefix(string(got), tc.want) || tc.ok && string(got) != tc.want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
}
