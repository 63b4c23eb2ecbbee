package shuffle

import (
	"net/http"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzResponse reads what another node says of a map output.
func FuzzResponse(f *testing.F) {
	f.Add(200, `{"offset":1,"length":7,"records":1}`, "none")
	f.Add(206, `{"length":-1}`, "zstd")
	f.Add(404, "", "")
	fuzztest.Run(f, func(t *testing.T, status int, partition, codec string) {
		got, err := parseResponse(&http.Response{StatusCode: status, Header: http.Header{headerPartition: {partition}, headerCodec: {codec}}})
		if err == nil && got.Range.Length < 0 || err != nil && fault.Class(err) == nil {
			t.Errorf("%d %q %q: %+v %v", status, partition, codec, got, err)
		}
	})
}
