package node

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/shuffle"
)

// nodeAccess says for each call and page that a node serves, and for each kind of
// caller, whether access is denied (-) or granted (+), whatever is then said of the
// request. Map outputs and dumps are proven by the job's token: without one they are
// denied to all.
var nodeAccess = map[string]struct{ request, want string }{
	//                                     no certificate, user, node, coordinator
	"/drover.v1.TaskService/Logs":     {`{"key":{"job":"1"}}`, "---+"},
	"/drover.v1.TaskService/Exec":     {`{"key":{"job":"1"}}`, "---+"},
	"/drover.v1.DebugService/Monitor": {`{}`, "---+"},
	"/drover.v1.DebugService/Profile": {`{"kind":"heap"}`, "---+"},
	"/metrics":                        {"", "-+++"},
	"/healthz":                        {"", "++++"}, // says nothing but that the daemon works
	shuffle.Prefix + "1.0.0.1/0":      {"", "----"},
	dump.Prefix + "1.0.0.1.1/":        {"", "----"},
}

// TestNodeAccessMatrix calls every call of the API at a node, as every kind of
// caller. Those of other services than the node's are not there for anybody. A new
// call of a node without a row fails.
func TestNodeAccessMatrix(t *testing.T) {
	dir := t.TempDir()
	b, base := secureNode(t, dir)
	b.start()
	clients := []*http.Client{nodeCaller(t, dir, ""), nodeCaller(t, dir, "user/alice"), nodeCaller(t, dir, "node/n2"), nodeCaller(t, dir, "coordinator/c1")}
	rows := 0
	for _, call := range apiCalls(t) {
		want := "...." // not there
		if row, ok := nodeAccess[call]; ok {
			want = row.want
			rows++
		}
		for i, c := range clients {
			if got := nodeOutcome(t, c, http.MethodPost, base+call, nodeAccess[call].request); got != want[i] {
				t.Errorf("%s by caller %d: %c, want %c", call, i, got, want[i])
			}
		}
	}
	for page, row := range nodeAccess {
		if row.request != "" {
			continue
		}
		rows++
		for i, c := range clients {
			if got := nodeOutcome(t, c, http.MethodGet, base+page, ""); got != row.want[i] && !(row.want[i] == '-' && got == '.') {
				t.Errorf("%s by caller %d: %c, want %c", page, i, got, row.want[i])
			}
		}
	}
	if rows != len(nodeAccess) {
		t.Errorf("%d of %d rows are served", rows, len(nodeAccess))
	}
	other := t.TempDir()
	strangers := map[string]*tls.Config{"of another CA": callerTLS(t, other, "coordinator/c1", time.Now()), "expired": callerTLS(t, dir, "coordinator/late", time.Now().Add(-2*pki.CertLifetime))}
	for name, conf := range strangers {
		conf.RootCAs = clients[0].Transport.(*http.Transport).TLSClientConfig.RootCAs
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
		if res, err := c.Post(base+"/drover.v1.TaskService/Logs", "application/json", nil); err == nil {
			_ = res.Body.Close()
			t.Errorf("a certificate that is %s got an answer: %s", name, res.Status)
		}
	}
}

// secureNode returns a node with a certificate of the CA in dir, and its URL.
func secureNode(t *testing.T, dir string) (*testNode, string) {
	t.Helper()
	callerTLS(t, dir, "node/n1", time.Now()) // makes the CA
	m, err := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "n1.pem"), Key: filepath.Join(dir, "n1.key")}.Open(pki.KindNode)
	if err != nil {
		t.Fatal(err)
	}
	b := newTestNode(t, programs())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.config.Listener, b.config.Certificate, b.config.tls = l, m, m.ServerConfig()
	return b, "https://" + l.Addr().String()
}

// callerTLS issues a certificate at a time, and returns the configuration of its
// holder.
func callerTLS(t *testing.T, dir, name string, at time.Time) *tls.Config {
	t.Helper()
	kind, short, _ := strings.Cut(name, "/")
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err != nil {
		if err := pki.CreateCA(dir, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.Kind(kind), Name: short, Hosts: []string{"127.0.0.1"}}, at); err != nil {
		t.Fatal(err)
	}
	conf, err := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, short+".pem"), Key: filepath.Join(dir, short+".key")}.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

// nodeCaller returns a client with a certificate of a name, "" for none.
func nodeCaller(t *testing.T, dir, name string) *http.Client {
	t.Helper()
	conf := callerTLS(t, dir, "user/spare", time.Now())
	if name == "" {
		conf = &tls.Config{RootCAs: conf.RootCAs, MinVersion: tls.VersionTLS13}
	} else {
		conf = callerTLS(t, dir, name, time.Now())
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// apiCalls returns the path of every call of every service.
func apiCalls(t *testing.T) (out []string) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("drover.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				out = append(out, "/"+string(s.FullName())+"/"+string(s.Methods().Get(k).Name()))
			}
		}
		return true
	})
	if len(out) < 40 {
		t.Fatalf("%d calls", len(out))
	}
	return out
}

// nodeOutcome returns + (granted), - (denied) or . (not there). All calls of a node
// are streams.
func nodeOutcome(t *testing.T, c *http.Client, method, url, body string) byte {
	t.Helper()
	payload := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/connect+json")
	res, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	_ = res.Body.Close()
	switch res.StatusCode {
	case http.StatusForbidden, http.StatusUnauthorized:
		return '-'
	case http.StatusNotFound:
		return '.'
	default:
		return '+'
	}
}
