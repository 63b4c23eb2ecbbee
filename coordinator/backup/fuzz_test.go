package backup

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzRead reads archives of any content: one that is no archive is an error with a class.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Manifest{})
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(w.Facts(3, strings.NewReader("abc")), w.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte{0x1f, 0x8b})
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		_, err := Read(bytes.NewReader(b), func(_ string, _ int64, r io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			return err
		})
		if err != nil && fault.Class(err) == nil {
			t.Errorf("an error without a class: %v", err)
		}
	})
}
