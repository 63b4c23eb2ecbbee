package keyorder

import (
	"cmp"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce/reference"
)

// mustParse returns the order of entries, which are not all text.
func mustParse(t interface{ Fatalf(string, ...any) }, entries ...string) Order {
	o, ok := Parse(entries)
	if !ok || o == nil {
		t.Fatalf("Parse(%q) = %v, %v", entries, o, ok)
	}
	return o
}

// checkPair checks all guarantees for two keys.
func checkPair(t interface {
	Errorf(string, ...any)
	Fatalf(string, ...any)
}, entries []string, a, b string) {
	o := mustParse(t, entries...)
	if want, got := reference.CompareKeys(entries, a, b), o.Compare(a, b); got != want {
		t.Errorf("%q and %q compare as %d by %q, want %d: % x, % x", a, b, got, entries, want, o.Append(nil, []byte(a)), o.Append(nil, []byte(b)))
	}
	for _, key := range []string{a, b} {
		if got, err := o.Decode([]byte("x"), o.Append(nil, []byte(key))); err != nil || string(got) != "x"+key {
			t.Errorf("%q by %q becomes %q, %v", key, entries, got, err)
		}
	}
}

// drawnField draws a field: often a number, near other numbers and written in many ways.
func drawnField(t *rapid.T) string {
	return rapid.OneOf(
		rapid.StringMatching(`[ ]?[-+]?0{0,2}[0-9]{0,3}(\.[0-9]{0,3})?`),
		rapid.StringMatching(`-?[1-9][0-9]{60,66}(\.[0-9]{0,3})?`),
		rapid.StringMatching(`-?0?\.0{58,66}[0-9]{0,3}`),
		rapid.StringMatching(`[-+0-9. a\x{00}\x{01}\x{09}\x{0b}\x{ff}]{0,4}`),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 8, 11, 'a', 0xf5, 0xf6, 0xfe, 0xff}), 0, 3), func(b []byte) string { return string(b) }),
	).Draw(t, "field")
}

func drawnKey(t *rapid.T, fields int) string {
	var list []string
	for range rapid.IntRange(1, fields).Draw(t, "fields") {
		list = append(list, drawnField(t))
	}
	return strings.Join(list, "\t")
}

// For any order and keys: the bytes of the encodings compare as the keys do by definition, and the
// encodings decode to the keys.
func TestEncodingsHaveTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(rapid.SampledFrom(Entries()), 0, 2).Draw(t, "entries")
		entries = append(entries, rapid.SampledFrom([]string{asTextDesc, asNumber, asNumberDesc}).Draw(t, "entry"))
		var keys []string
		for range rapid.IntRange(2, 8).Draw(t, "keys") {
			keys = append(keys, drawnKey(t, len(entries)))
		}
		for _, a := range keys {
			for _, b := range keys {
				checkPair(t, entries, a, b)
			}
		}
	})
}

func FuzzOrder(f *testing.F) {
	f.Add("1\ta", "01\tb")
	f.Add("-1.5\t", "-1.50")
	f.Add("", "-")
	f.Add("12abc", "1e3")
	fuzztest.Run(f, func(t *testing.T, a, b string) {
		if strings.Contains(a+b, "\n") {
			return
		}
		for _, first := range Entries() {
			checkPair(t, []string{first, asNumberDesc}, a, b)
		}
	})
}

// The order of numbers is a refinement of that of sort -n, except for "+".
func TestNumbersAreInTheOrderOfSort(t *testing.T) {
	program, err := exec.LookPath("sort")
	if err != nil {
		t.Skip("not proved here: that numbers are in the order of sort -n, which this machine lacks")
	}
	rapid.Check(t, func(t *rapid.T) {
		entry := rapid.SampledFrom([]string{asNumber, asNumberDesc}).Draw(t, "entry")
		keys := rapid.SliceOfN(rapid.Custom(drawnField), 300, 300).Draw(t, "keys")
		for i, k := range keys {
			keys[i] = strings.NewReplacer("+", "", "\x00", "", "\t", "").Replace(k)
		}
		slices.SortFunc(keys, mustParse(t, entry).Compare)
		flags := "-csn"
		if entry == asNumberDesc {
			flags += "r"
		}
		cmd := exec.Command(program, flags)
		cmd.Env = []string{"LC_ALL=C"}
		cmd.Stdin = strings.NewReader(strings.Join(keys, "\n") + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("sort %s: %v, %s", flags, err, out)
		}
	})
}

// The orders that a reader of the documents expects.
func TestOrders(t *testing.T) {
	for name, c := range map[string]struct {
		entries, want []string // want in order
	}{
		"numbers": {[]string{asNumber}, []string{"-10", "-9.5", "-9", "-0.5", "0", "0.25", "5", "10", "123456789012345678901234567890"}},
		"what does not begin with a number is 0, the plain one first": {[]string{asNumber}, []string{"-1", "0", "", "+", "-", "-0", "name", "1"}},
		"equal numbers are different keys, the plain one first":       {[]string{asNumber}, []string{"1", " 1", "+1", "01", "1.", "1.0", "1e3", "1st", "2"}},
		"so are negative ones":          {[]string{asNumber}, []string{"-1", "-01", "-1.0", "-0.5"}},
		"the largest first":             {[]string{asNumberDesc}, []string{"10", "9", "1.0", "1", "", "0", "-1"}},
		"text backwards":                {[]string{asTextDesc}, []string{"\xff", "b", "ab", "a\x01", "a", ""}},
		"a user, and the largest first": {[]string{asText, asNumberDesc}, []string{"a", "a\t10", "a\t9", "a\x01\t7", "b\t11"}},
		"a key that ends before a field is first, also if it is desc": {[]string{asTextDesc, asTextDesc, asNumber}, []string{"b", "b\tx", "b\tx\t1", "b\t", "b\t\t1", "a"}},
		"equal first fields stay together, also if others equal them": {[]string{asNumber, asText}, []string{"1\ta", "1\tc", "1.0\tb"}},
		"the last field has all that remains":                         {[]string{asTextDesc}, []string{"a\t2", "a\t10", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, a := range c.want {
				for j, b := range c.want {
					if got := mustParse(t, c.entries...).Compare(a, b); got != cmp.Compare(i, j) {
						t.Errorf("%q and %q compare as %d", a, b, got)
					}
				}
			}
		})
	}
}

func TestParse(t *testing.T) {
	if o, ok := Parse([]string{asText, asText}); o != nil || !ok {
		t.Errorf("all text is %v, %v", o, ok)
	}
	if o, ok := Parse(nil); o != nil || !ok {
		t.Errorf("nothing is %v, %v", o, ok)
	}
	for _, e := range []string{"", "Text", "number  desc", "number asc", "desc"} {
		if o, ok := Parse([]string{asNumber, e}); ok {
			t.Errorf("%q is %v", e, o)
		}
	}
}

// Damaged bytes are an error, never a panic or a key of gigabytes.
func TestDecodeRefusesDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := []string{rapid.SampledFrom(Entries()).Draw(t, "entry"), asNumber}
		o := mustParse(t, entries...)
		b := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "bytes")
		key, err := o.Decode(nil, b)
		if err == nil && !strings.Contains(string(key), "\n") {
			if again, err := o.Decode(nil, o.Append(nil, key)); err != nil || string(again) != string(key) {
				t.Fatalf("% x is %q, and then %q, %v", b, key, again, err)
			}
		}
	})
	o := mustParse(t, asNumberDesc)
	whole := o.Append(nil, []byte("-12.5x"))
	for i := range whole {
		if key, err := o.Decode(nil, whole[:i]); err == nil {
			t.Errorf("%d bytes of %d are %q", i, len(whole), key)
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	key := []byte("user1234\t1700000000")
	for _, entries := range [][]string{{asText, asNumber}, {asText, asNumberDesc}, {asTextDesc, asText}} {
		o := mustParse(b, entries...)
		b.Run(fmt.Sprint("append ", entries), func(b *testing.B) {
			var buf []byte
			for b.Loop() {
				buf = o.Append(buf[:0], key)
			}
		})
		b.Run(fmt.Sprint("decode ", entries), func(b *testing.B) {
			var buf []byte
			encoded := o.Append(nil, key)
			for b.Loop() {
				buf, _ = o.Decode(buf[:0], encoded)
			}
		})
	}
}
