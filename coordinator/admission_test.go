package coordinator

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
)

// metric returns the value of a series of the coordinator's metrics, 0 for none.
func (b *testCluster) metric(series string) (v float64) {
	b.t.Helper()
	res, err := b.plainClient().Get("http://c/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), series+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return v
}

func inUse(pool string) string { return fmt.Sprintf("drover_api_in_use{pool=%q}", pool) }

// runRemoteNode runs a simulated node over TLS until the test ends.
func runRemoteNode(b *testCluster, c *http.Client, base, name string) {
	n := coordtest.New(droverv1connect.NewNodeServiceClient(c, base), coordtest.Info(name), b.fs, coordtest.Succeed)
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	b.t.Cleanup(func() { cancel(); <-done })
}

func TestStreamsOfOneUserStopNobodyElse(t *testing.T) {
	b, as, base := secure(t)
	b.patience = time.Minute // who is refused is read later
	const floods = 1024
	ctx, cancel := context.WithCancel(b.ctx)
	var refused atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 8 { // connections
		c := droverv1connect.NewClientServiceClient(as("user/bob"), base)
		if _, err := c.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil { // one connection for the streams, not one for each
			t.Fatal(err)
		}
		for range floods / 8 {
			wg.Go(func() {
				st, err := c.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
				if err != nil {
					return
				}
				defer func() { _ = st.Close() }()
				for st.Receive() {
					continue
				}
				if wire.IsOverload(st.Err()) {
					refused.Add(1)
				}
			})
		}
	}
	b.waitUntil("all streams are open or refused", func() bool {
		return refused.Load()+int64(b.metric(inUse("streams"))) == floods
	})
	if open := b.metric(inUse("streams")); open < 100 || open > 512 {
		t.Errorf("one user has %g streams open, want some hundreds", open)
	}
	runRemoteNode(b, as("node/n1"), base, "n1") // registers, watches, reports
	alice := droverv1connect.NewClientServiceClient(as("user/alice"), base)
	id := b.submit(groupJob("j", 1))
	b.waitForEnd("j", succeeded)
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	watch, err := root.WatchJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: fmt.Sprint(id)}))
	if err != nil || !watch.Receive() {
		t.Fatalf("another user's watch: %v %v", err, watch.Err())
	}
	_ = watch.Close()
	if _, err := alice.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadMetricsHoldNoTurn asks for metrics with HTTP/2 and no window, so that nothing of them can be sent.
func TestUnreadMetricsHoldNoTurn(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.limits.pace.Stall = 2 * time.Second })
	node := as("node/n1")
	for path := range procedures { // a series for each: more than a buffer of HTTP/2 holds
		res, err := node.Post(base+path, "application/json", strings.NewReader("rubbish"))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	bob := as("user/bob")
	var all []net.Conn
	for range runtime.GOMAXPROCS(0) + 1 {
		conf := bob.Transport.(*http.Transport).TLSClientConfig.Clone()
		conf.NextProtos = []string{"h2"}
		conn, err := tls.Dial("tcp", strings.TrimPrefix(base, "https://"), conf)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		const settings, headers = "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x04\x00\x00\x00\x00", // INITIAL_WINDOW_SIZE: 0
			"\x00\x00\x0f\x01\x05\x00\x00\x00\x01" + "\x82\x87\x41\x01c\x04\x08/metrics" // GET https c /metrics
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings+headers); err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	resets := make(chan error, len(all))
	answered := make(chan struct{}, len(all))
	for _, conn := range all {
		go func() {
			for {
				head := make([]byte, 9)
				_, err := io.ReadFull(conn, head)
				if err == nil {
					_, err = io.CopyN(io.Discard, conn, int64(head[1])<<8|int64(head[2]))
				}
				switch {
				case err != nil || head[3] == 3: // RST_STREAM
					resets <- err
					return
				case head[3] == 1: // HEADERS
					answered <- struct{}{}
				}
			}
		}()
	}
	for range all { // each gets its turn, though nobody reads
		select {
		case <-answered:
		case <-time.After(time.Minute):
			t.Fatal("who reads nothing has the turns of others")
		}
	}
	if _, err := droverv1connect.NewClientServiceClient(bob, base).Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); err != nil {
		t.Error(err)
	}
	for range all {
		if err := <-resets; err != nil {
			t.Errorf("no reset: %v", err)
		}
	}
	b.waitUntil("nothing is left but this scrape", func() bool { return b.metric(inUse("pages")) == 1 })
}

// slowRequest opens an HTTP/1.1 connection, sends the head of a request and all
// but the last bytes of its body, and returns a reader of the response.
func slowRequest(t *testing.T, c *http.Client, base, procedure string, body []byte, keep int) *bufio.Reader {
	t.Helper()
	conf := c.Transport.(*http.Transport).TLSClientConfig.Clone()
	conf.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(base, "https://"), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: c\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", procedure, len(body))
	go func() { _, _ = conn.Write(body[:len(body)-keep]) }() // ends when the connection is closed
	return bufio.NewReader(conn)
}

func TestSlowBodiesAreBoundedAndDropped(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.limits.pace.Stall = 3 * time.Second })
	bob := as("user/bob")
	body := bytes.Repeat([]byte(" "), specMessage-100)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse)
	}
	before := heap()
	answers := make(chan int, 100)
	for range cap(answers) {
		r := slowRequest(t, bob, base, droverv1connect.ClientServiceSubmitJobProcedure, body, 100)
		go func() {
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				answers <- 0
				return
			}
			answers <- res.StatusCode
		}()
	}
	b.waitUntil("bodies arrive", func() bool { return b.metric(inUse("body_bytes")) > 8<<20 })
	if n := b.metric(inUse("body_bytes")); n > 16<<20 {
		t.Errorf("one user's bodies take %g bytes", n)
	}
	if grown := heap() - before; grown > 160<<20 { // buffers grow by doubling
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	alice := droverv1connect.NewClientServiceClient(as("user/alice"), base)
	text := `{"version":1,"name":"j","stages":[{"name":"s","kind":"group","command":["x"]}]}` + strings.Repeat(" ", 400<<10)
	if _, err := alice.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: text})); err != nil {
		t.Errorf("another user meanwhile: %v", err)
	}
	codes := map[int]int{}
	for range cap(answers) {
		codes[<-answers]++
	}
	if codes[http.StatusTooManyRequests] == 0 || codes[http.StatusServiceUnavailable] == 0 || codes[http.StatusOK] > 0 {
		t.Errorf("answers by status: %v; want some refused (429), some dropped (503)", codes)
	}
	b.waitUntil("nothing is left", func() bool { return b.metric(inUse("body_bytes")) == 0 && b.metric(inUse("calls")) == 0 })
}

// TestBodiesOfNoCallEnd begins bodies where a page reads a form, where nothing reads one, and where a call is refused by its
// kind before its body is read: the connection ends.
func TestBodiesOfNoCallEnd(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) {
		c.limits.pace.Stall = 100 * time.Millisecond
		c.Page = func(PageConfig) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err == nil {
					t.Error("a body has come")
				}
				http.Error(w, "the form did not come", http.StatusBadRequest)
			})
		}
	})
	b.waitUntil("it leads", func() bool { return b.metric("drover_leading") == 1 })
	for _, path := range []string{"/healthz", "/metrics", "/do/stop", "/drover.v1.Nothing/Call"} {
		_, err := io.ReadAll(slowRequest(t, as("user/bob"), base, path, make([]byte, 1000), 999))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still there", path)
		}
	}
	b.waitUntil("nothing is left but this scrape", func() bool { return b.metric(inUse("pages")) == 1 })
}

// A message that unpacks to more than its limit is not unpacked further than that.
func TestPackedMessagesAreUnpackedToTheirLimit(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	block := make([]byte, 1<<20)
	for range 64 {
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := &boundedReader{most: 1<<20 + 1}
	for range 2 { // it is used again
		if err := r.Reset(bytes.NewReader(packed.Bytes())); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); n != 1<<20+1 || !errors.Is(err, fault.Exhausted) {
			t.Errorf("%d bytes were unpacked: %v", n, err)
		}
	}
	b, as, base := secure(t)
	req, err := http.NewRequestWithContext(b.ctx, http.MethodPost, base+droverv1connect.ClientServiceSubmitJobProcedure, &packed)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	res, err := as("user/bob").Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode == http.StatusOK || !strings.Contains(string(text), "it unpacks to more than") {
		t.Errorf("%s %s, %v; want that it ends at the limit", res.Status, text, err)
	}
}

func put(ctx context.Context, c droverv1connect.ClientServiceClient, data []byte) error {
	sum := sha256.Sum256(data)
	s := c.PutBlob(ctx)
	if err := s.Send(&droverv1.PutBlobRequest{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(data)), Data: data}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := s.CloseAndReceive()
	return wire.FromError(err)
}

func TestStalledUploadsStopNobodyElseAndAreDropped(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.limits.pace.Stall = 2 * time.Second })
	bob := droverv1connect.NewClientServiceClient(as("user/bob"), base)
	errs := make(chan error, 16)
	for i := range cap(errs) {
		s := bob.PutBlob(b.ctx)
		sum := sha256.Sum256([]byte{byte(i)})
		if err := s.Send(&droverv1.PutBlobRequest{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: 512 << 20}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		go func() {
			// Receive, without an end of the request, as a client that hangs does.
			conn, err := s.Conn()
			if err == nil {
				err = conn.Receive(&droverv1.PutBlobResponse{})
			}
			errs <- wire.FromError(err)
		}()
	}
	b.waitUntil("uploads hang", func() bool { return b.metric(inUse("uploads")) >= 8 })
	alice := droverv1connect.NewClientServiceClient(as("user/alice"), base)
	if err := put(b.ctx, alice, []byte("a file of hers")); err != nil {
		t.Fatalf("another user's upload: %v", err)
	}
	refused, dropped := 0, 0
	for range cap(errs) {
		switch err := <-errs; {
		case errors.Is(err, fault.Exhausted):
			refused++
		case errors.Is(err, fault.Unavailable) && strings.Contains(err.Error(), "stalled"):
			dropped++
		default:
			t.Errorf("an upload ended with %v", err)
		}
	}
	if refused == 0 || dropped == 0 || dropped > 8 {
		t.Errorf("%d refused, %d dropped", refused, dropped)
	}
	b.waitUntil("all are gone", func() bool { return b.metric(inUse("uploads")) == 0 })
}

func TestUploadsThatNoJobUsesHaveShare(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) { c.BlobQuota = 40_000 })
	bob, alice := droverv1connect.NewClientServiceClient(as("user/bob"), base), droverv1connect.NewClientServiceClient(as("user/alice"), base)
	if err := put(b.ctx, bob, bytes.Repeat([]byte("a"), 6000)); err != nil {
		t.Fatal(err)
	}
	if err := put(b.ctx, bob, bytes.Repeat([]byte("b"), 6000)); !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "no job uses") {
		t.Errorf("over the share: %v", err)
	}
	if err := put(b.ctx, bob, bytes.Repeat([]byte("a"), 6000)); err != nil {
		t.Errorf("the same file again: %v", err)
	}
	if err := put(b.ctx, alice, bytes.Repeat([]byte("b"), 6000)); err != nil {
		t.Errorf("another user's: %v", err)
	}
}

func TestCallersAreRefusedBeforeTheirBodyIsRead(t *testing.T) {
	b, as, base := secure(t)
	b.waitUntil("it leads", func() bool { return b.metric("drover_leading") == 1 })
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "default", Submit: []string{"alice"}}}})); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who, procedure string
		want           int
	}{
		{"node/n1", droverv1connect.ClientServiceSubmitJobProcedure, http.StatusForbidden},
		{"coordinator/x", droverv1connect.NodeServiceReportProcedure, http.StatusForbidden},
		{"user/alice", droverv1connect.NodeServiceReportProcedure, http.StatusForbidden},
		{"user/alice", droverv1connect.ClientServiceApplyTenantsProcedure, http.StatusForbidden},
		{"user/bob", droverv1connect.ClientServiceSubmitJobProcedure, http.StatusForbidden},
		{"user/alice", droverv1connect.ClientServiceStatusProcedure, http.StatusTooManyRequests}, // 1 MiB is too long for it
	} {
		res, err := http.ReadResponse(slowRequest(t, as(tc.who), base, tc.procedure, make([]byte, 1<<20), 1<<20), nil)
		if err != nil {
			t.Fatalf("%s, %s: %v", tc.who, tc.procedure, err)
		}
		_ = res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s, %s: %s, want %d", tc.who, tc.procedure, res.Status, tc.want)
		}
	}
}

func TestPoolShares(t *testing.T) {
	user := func(n int) identity { return identity{kind: kindUser, name: fmt.Sprint("user/", n)} }
	fill := func(p *pool, id identity) (n int) {
		for p.take(id, 1) == nil {
			n++
		}
		return n
	}
	p := newPool("things", 100, 100)
	if n := fill(p, user(1)); n != 50 {
		t.Errorf("one user alone gets %d of 100, want half", n)
	}
	if n := fill(p, user(2)); n != 25 {
		t.Errorf("the second gets %d of the 50 that are left, want half of them", n)
	}
	if n := fill(p, identity{kind: kindLocal, name: "local"}); n != 25 {
		t.Errorf("the local operator gets %d, want the rest", n)
	}
	p.release(user(1), 50)
	p.release(user(2), 25)
	p.release(identity{kind: kindLocal, name: "local"}, 25)
	if p.used != 0 || len(p.by) != 0 {
		t.Errorf("after all is returned: %d used, by %v", p.used, p.by)
	}
	p = newPool("things", 100, 10)
	if n := fill(p, user(1)); n != 10 {
		t.Errorf("a user gets %d, want the share of 10", n)
	}
}

// Each reason of a refused call is in the help of the metric and in the operators' list.
func TestRefusalReasonsAreNamed(t *testing.T) {
	doc, err := os.ReadFile("../docs/how-to/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, row, _ := strings.Cut(string(doc), "| `drover_api_refused_total` |")
	row, _, _ = strings.Cut(row, "\n")
	for want, err := range map[string]error{
		"unauthenticated": connect.NewError(connect.CodeUnauthenticated, fault.New(fault.Denied, "no such token")),
		"denied":          fault.New(fault.Denied, "not yours"),
		"over_limit":      fault.New(fault.Exhausted, "too many"),
		"other":           fault.New(fault.Unavailable, "not now"),
	} {
		if got := refusalReason(err); got != want || !slices.Contains(refusalReasons, got) {
			t.Errorf("%v is refused for %q, want %q", err, got, want)
		}
	}
	for _, reason := range refusalReasons {
		if !strings.Contains(row, "`"+reason+"`") {
			t.Errorf("operating.md does not name the reason %s", reason)
		}
	}
}
