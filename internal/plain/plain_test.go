package plain

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	for in, want := range map[string][2]string{ // Line, Text
		"":                           {"", ""},
		"größer \u4e16":              {"größer \u4e16", "größer \u4e16"},
		"\x1b[2J\x1b]0;pwned\x07":    {`\u001b[2J\u001b]0;pwned\u0007`, `\u001b[2J\u001b]0;pwned\u0007`},
		"a\nb\tc":                    {`a\u000ab\u0009c`, "a\nb\tc"},
		"100%\r200%":                 {`100%\u000d200%`, `100%\u000d200%`},
		"\u009b31m \x7f":             {`\u009b31m \u007f`, `\u009b31m \u007f`},
		"\x9b31m":                    {"\ufffd31m", "\ufffd31m"},
		"a\u061cb":                   {`a\u061cb`, `a\u061cb`},
		"a\u202egpj.exe\u2066\u2028": {`a\u202egpj.exe\u2066\u2028`, `a\u202egpj.exe\u2066\u2028`},
	} {
		if got := Line(in); got != want[0] {
			t.Errorf("Line(%q) is %q, want %q", in, got, want[0])
		}
		if got := Text(in); got != want[1] {
			t.Errorf("Text(%q) is %q, want %q", in, got, want[1])
		}
		if got := Clean(in); HasControl(got) {
			t.Errorf("Clean(%q) is %q", in, got)
		}
	}
}

// However text is cut into writes, the result is the same, and it controls
// nothing.
func TestWriterDoesNotDependOnCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte("\x1b\xc3\xa4\xe2\x80\xae\xf0\x9f\x98\x80\n")))).Draw(t, "text")
		var out bytes.Buffer
		w := NewWriter(&out)
		for rest := text; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if got, err := w.Write(rest[:n]); got != n || err != nil {
				t.Fatalf("%d, %v, want %d", got, err, n)
			}
			rest = rest[n:]
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if want := Text(string(text)); out.String() != want {
			t.Fatalf("got %q, want %q", out.String(), want)
		}
		for _, r := range out.String() {
			if isControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q in %q", r, out.String())
			}
		}
	})
}

// JSON stays JSON with the same value.
func TestTextKeepsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal([]byte(Text(string(b))), &back); err != nil || utf8.ValidString(s) && back != s {
			t.Fatalf("%q became %q, %v", s, back, err)
		}
	})
}
