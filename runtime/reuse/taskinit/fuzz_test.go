package taskinit

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzDecode reads messages as both ends do: what is read is written again and is the same.
func FuzzDecode(f *testing.F) {
	for _, m := range []any{Request{Args: []string{"true"}, Env: []string{"A=b"}, Dir: "/task"}, Request{Kill: 7}, Reply{Event: Exited, PID: 3, Code: 137}} {
		b, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		if len(b) < 4 {
			return
		}
		fuzzMessage[Request](t, b)
		fuzzMessage[Reply](t, b)
	})
}

func fuzzMessage[M any](t *testing.T, b []byte) {
	var m, again M
	if Decode(bytes.NewReader(b[4:]), b[:4], &m) != nil {
		return
	}
	text, err := Encode(m)
	if err != nil {
		return // JSON escapes can make it too long
	}
	if err := Decode(bytes.NewReader(text[4:]), text[:4], &again); err != nil {
		t.Fatalf("%+v does not come back: %v", m, err)
	}
	if third, err := Encode(again); err != nil || !reflect.DeepEqual(text, third) {
		t.Errorf("%+v comes back as %+v (%v)", m, again, err)
	}
}
