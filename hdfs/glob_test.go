package hdfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// cancelledSource is a folder of many files whose listing ends the caller's context.
type cancelledSource struct {
	Source
	cancel context.CancelFunc
}

func (s cancelledSource) List(context.Context, string) ([]Info, error) {
	s.cancel()
	out := make([]Info, 10_000)
	for i := range out {
		out[i].Path = fmt.Sprintf("/%s%d", strings.Repeat("ab", 120), i)
	}
	return out, nil
}

// A pattern of a tenant can take half a second for each name. Glob must end with its context: it
// used to go on when nobody waited for it any more, in one of the few slots that a node has for all
// requests.
func TestGlobEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Glob(ctx, cancelledSource{cancel: cancel}, "/{*a,*b}*"+strings.Repeat("?", 100)+"x")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
	long := "/" + strings.Repeat("{a,b}", 10) + strings.Repeat("?", 100)
	if _, err := Glob(t.Context(), cancelledSource{cancel: cancel}, long); !errors.Is(err, ErrInvalid) {
		t.Errorf("1024 alternatives of 110 bytes: %v", err)
	}
	if _, err := Glob(t.Context(), cancelledSource{cancel: cancel}, "/{"+strings.Repeat("2026-11-29,", 1000)+"x}"); err != nil {
		t.Errorf("a thousand days: %v", err)
	}
}
