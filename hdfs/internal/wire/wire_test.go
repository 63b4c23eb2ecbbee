package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	pw "google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/fuzztest"
)

func TestFieldsRoundTripInOrder(t *testing.T) {
	m := Message(nil).Uint(1, 300).Sint(2, -3).Bool(3, true).String(4, "text").Fixed32(5, 7).Fixed64(6, 8)
	m = pw.AppendTag(m, 7, pw.StartGroupType) // groups are skipped
	m = Message(m).Uint(1, 9)
	m = pw.AppendTag(m, 7, pw.EndGroupType)
	m = m.Bytes(8, nil)
	var got []Field
	if err := Each(m, func(f Field) error { got = append(got, f); return nil }); err != nil {
		t.Fatal(err)
	}
	want := []Field{{1, pw.VarintType, 300, nil}, {2, pw.VarintType, 5, nil}, {3, pw.VarintType, 1, nil},
		{4, pw.BytesType, 0, []byte("text")}, {5, pw.Fixed32Type, 7, nil}, {6, pw.Fixed64Type, 8, nil}, {8, pw.BytesType, 0, []byte{}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadNWithShortReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have := rapid.IntRange(0, 3*maxPreallocBytes).Draw(t, "have")
		n := rapid.IntRange(0, 3*maxPreallocBytes).Draw(t, "n")
		b := make([]byte, have)
		for i := range b {
			b[i] = byte(i * 31)
		}
		got, err := ReadN(iotest.HalfReader(bytes.NewReader(b)), make([]byte, 10), n)
		switch {
		case n <= have:
			if err != nil || !bytes.Equal(got, b[:n]) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		case have == 0:
			if err != io.EOF {
				t.Fatalf("nothing: %v", err)
			}
		case err != io.ErrUnexpectedEOF:
			t.Fatalf("cut: %v", err)
		}
	})
}

func TestReadDelimitedEnforcesLimit(t *testing.T) {
	for claim, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"whole":           {[]byte{2, 'a', 'b'}, nil},
		"empty":           {[]byte{0}, nil},
		"cut":             {[]byte{2, 'a'}, io.ErrUnexpectedEOF},
		"nothing behind":  {[]byte{2}, io.ErrUnexpectedEOF},
		"nothing":         {nil, io.EOF},
		"over the limit":  {[]byte{101}, ErrMalformed},
		"length too long": {[]byte{0x80, 0x80, 0x80, 0x80, 0x80, 1}, ErrMalformed},
	} {
		if _, err := ReadDelimited(bytes.NewReader(c.bytes), 100); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", claim, err, c.want)
		}
	}
}

func FuzzEach(f *testing.F) {
	f.Add([]byte(Message(nil).Uint(1, 300).String(4, "text")))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		total := 0
		err := Each(b, func(f Field) error { total += len(f.Bytes); return nil })
		if total > len(b) || err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes of fields in %d, %v", total, len(b), err)
		}
	})
}
