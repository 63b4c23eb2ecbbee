package coordinator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzCalls makes each call of the API with any message, as somebody who may do everything:
// it is answered, refused, or goes on as a stream. A call that panics has no answer.
func FuzzCalls(f *testing.F) {
	all := slices.Sorted(maps.Keys(procedures))
	for i := range all {
		f.Add(uint16(i), []byte{}, false)
		f.Add(uint16(i), []byte("\x0a\x011\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false)
		f.Add(uint16(i), []byte(`{"job":"1","limit":-1}`), true)
	}
	b := newTestCluster(f, nil)
	b.waitUntil("the coordinator answers", func() bool { _, err := b.http.Get("http://c/healthz"); return err == nil })
	fuzztest.Run(f, func(t *testing.T, call uint16, body []byte, text bool) {
		name := all[int(call)%len(all)]
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://c"+name, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/proto")
		if text {
			r.Header.Set("Content-Type", "application/json")
		}
		res, err := b.http.Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
			_ = res.Body.Close()
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "NO_ERROR") {
			t.Errorf("%s: %v", name, err)
		}
	})
}
