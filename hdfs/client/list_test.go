package client

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// batches is a NameNode with one folder, whose names it lists in its own order, two at a time.
type batches []string

func (o batches) Call(_ context.Context, _ string, request []byte) ([]byte, error) {
	after := ""
	err := wire.Each(request, func(f wire.Field) error {
		if f.Number == 2 {
			return f.SetString(&after)
		}
		return nil
	})
	rest := o[slices.Index(o, after)+1:]
	batch := rest[:min(2, len(rest))]
	listing := wire.Message(nil)
	for _, name := range batch {
		listing = listing.Bytes(1, wire.Message(nil).Uint(1, 2).String(2, name))
	}
	return wire.Message(nil).Bytes(1, listing.Uint(2, uint64(len(rest)-len(batch)))), err
}

// HDFS orders names by signed bytes, so that non-ASCII names come first; List orders names by their
// bytes.
func TestListOfNamesOutsideOfASCII(t *testing.T) {
	c := newCallerClient(t, batches{"\u00e9t\u00e9", "\u65e5\u672c", "a", "b", "c"}, Options{})
	infos, err := c.List(t.Context(), "/in")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, info := range infos {
		got = append(got, info.Path)
	}
	if want := []string{"/in/a", "/in/b", "/in/c", "/in/\u00e9t\u00e9", "/in/\u65e5\u672c"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestListThatDoesNotAdvanceIsRefused(t *testing.T) {
	if _, err := newCallerClient(t, batches{"a", "b", "a", "b", "c"}, Options{}).List(t.Context(), "/in"); !errors.Is(err, hdfs.ErrProtocol) {
		t.Errorf("%v", err)
	}
}
