package coordinator

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// traceCollector is an OTLP/HTTP endpoint that keeps what it gets.
type traceCollector struct {
	url string

	mu    sync.Mutex
	spans []*otlp.Span
}

func newTraceCollector(t *testing.T) *traceCollector {
	c := &traceCollector{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Error(err)
				return
			}
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(body); err != nil {
			t.Error(err)
		}
		var m collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(b.Bytes(), &m); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, x := range m.GetResourceSpans() {
			for _, s := range x.GetScopeSpans() {
				c.spans = append(c.spans, s.GetSpans()...)
			}
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// byName returns the spans of a name.
func (c *traceCollector) byName(name string) (out []*otlp.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == name {
			out = append(out, s)
		}
	}
	return out
}

// attribute returns an attribute of a span as text.
func attribute(s *otlp.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func TestTracesShowTheWayOfAJob(t *testing.T) {
	spans := newTraceCollector(t)
	b := newTestCluster(t, func(c *Config) { c.TracesEndpoint = spans.url })
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	b.submit(groupJob("good", 2))
	b.waitForEnd("good", succeeded)
	n.SetBehaviour(coordtest.Fail(droverv1.Cause_CAUSE_EXIT, "exit code 1"))
	b.submit(groupJob("bad", 1))
	b.waitForEnd("bad", failed)
	b.waitUntil("the spans of both jobs", func() bool {
		return len(spans.byName("job")) == 2 && len(spans.byName("attempt")) >= 3 && len(spans.byName("decision")) >= 3
	})

	jobs := map[string]*otlp.Span{}
	for _, s := range spans.byName("job") {
		jobs[attribute(s, "drover.job.name")] = s
	}
	if len(jobs) != 2 {
		t.Fatalf("jobs %v", jobs)
	}
	if good, bad := jobs["good"].GetStatus().GetCode(), jobs["bad"].GetStatus().GetCode(); good != otlp.Status_STATUS_CODE_UNSET || bad != otlp.Status_STATUS_CODE_ERROR {
		t.Errorf("status of good %v, of bad %v", good, bad)
	}
	good := 0
	attempts := map[string]*otlp.Span{} // by span id
	for _, s := range spans.byName("attempt") {
		attempts[hex.EncodeToString(s.GetSpanId())] = s
		switch {
		case bytes.Equal(s.GetTraceId(), jobs["good"].GetTraceId()):
			good++
			if !bytes.Equal(s.GetParentSpanId(), jobs["good"].GetSpanId()) {
				t.Errorf("attempt of good below %x", s.GetParentSpanId())
			}
		case !bytes.Equal(s.GetTraceId(), jobs["bad"].GetTraceId()) || s.GetStatus().GetCode() != otlp.Status_STATUS_CODE_ERROR:
			t.Errorf("attempt %v", s)
		}
		if attribute(s, "drover.node") != "n1" || attribute(s, "drover.stage") != "main" {
			t.Errorf("attempt %v", s.GetAttributes())
		}
	}
	if good != 2 {
		t.Errorf("%d attempts of good", good)
	}
	for _, name := range []string{"decision", "place"} {
		list := spans.byName(name)
		for _, s := range list {
			if a := attempts[hex.EncodeToString(s.GetParentSpanId())]; a == nil || s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
				t.Errorf("%s %v below %v", name, s, a)
			}
		}
		if len(list) != len(attempts) {
			t.Errorf("%d spans %s for %d attempts", len(list), name, len(attempts))
		}
	}
	if list := spans.byName("submission"); len(list) != 2 || len(list[0].GetParentSpanId()) == 0 {
		t.Errorf("submissions %v", list)
	}
}

func TestNoCollectorStopsNoJob(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.TracesEndpoint = "http://127.0.0.1:1" })
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	b.submit(groupJob("a", 2))
	b.waitForEnd("a", succeeded)
}

func TestTracesEndpointIsChecked(t *testing.T) {
	local, err := ListenLocal(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	for _, bad := range []string{"collector:4318", "ftp://collector", "/v1/traces", "http://", "://"} {
		_, err := open(t.Context(), Config{Dir: t.TempDir(), Local: local, TracesEndpoint: bad})
		if err == nil || !strings.Contains(err.Error(), "want a URL such as http://collector:4318") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
