package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

func open(t *testing.T, dir, name string, kind Kind) *Member {
	t.Helper()
	m, err := files(dir, name).Open(kind)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// serve starts a server of a member that answers every caller that it accepts.
func serve(t *testing.T, m *Member, conns *Connections) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, name, _ := PeerIdentity(r.TLS)
		io.WriteString(w, name)
	}))
	conf := m.ServerConfig()
	if conns != nil {
		conf, s.Config.ConnState = conns.Config(conf), conns.Observe
	}
	startTLS(s, conf)
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, s *httptest.Server, conf *tls.Config) (string, error) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: conf}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get(s.URL)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func TestServersAreCheckedForTheirKind(t *testing.T) {
	dir := cluster(t)
	alice := open(t, dir, "alice", KindUser)
	for _, tc := range []struct {
		server string
		want   []Kind
		ok     bool
	}{
		{"c1", []Kind{KindCoordinator}, true},
		{"n1", []Kind{KindCoordinator}, false}, // a coordinator's certificate is required, and a node's does not do
		{"n1", []Kind{KindNode}, true},
		{"c1", []Kind{KindNode}, false},
	} {
		_, err := get(t, serve(t, open(t, dir, tc.server, ""), nil), alice.ClientConfig(tc.want...))
		if (err == nil) != tc.ok || (err != nil && !errors.Is(err, ErrWrongPeer)) {
			t.Errorf("%s where a %s is wanted: %v", tc.server, tc.want, err)
		}
	}
	if _, err := files(dir, "n1").Open(KindCoordinator); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "node/n1, not of a coordinator") {
		t.Errorf("a coordinator with a node's certificate: %v", err)
	}
	// A server that wants one kind refuses the others in the handshake.
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	startTLS(s, open(t, dir, "n1", KindNode).ServerConfig(KindCoordinator))
	defer s.Close()
	if _, err := get(t, s, alice.ClientConfig()); err == nil {
		t.Error("a user was let in where a coordinator is wanted")
	}
}

func TestRenewedCertificatesAreUsedWithoutRestart(t *testing.T) {
	dir := cluster(t)
	server, client := open(t, dir, "c1", KindCoordinator), open(t, dir, "alice", KindUser)
	s := serve(t, server, nil)
	var shown *big.Int
	conf := client.ClientConfig()
	verify := conf.VerifyConnection
	conf.VerifyConnection = func(cs tls.ConnectionState) error {
		shown = cs.PeerCertificates[0].SerialNumber
		return verify(cs)
	}
	if _, err := get(t, s, conf); err != nil {
		t.Fatal(err)
	}
	first := shown
	old, err := Issue(dir, CertRequest{Kind: KindCoordinator, Name: "c1", Hosts: []string{"127.0.0.1"}}, time.Now())
	if err != nil || old == nil || old.SerialNumber.Cmp(first) != 0 {
		t.Fatalf("the second issue reports %v, %v as the first", old, err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, s, conf); err != nil || shown.Cmp(first) == 0 {
		t.Errorf("the server still shows its first certificate: %v", err)
	}
	// A file that is damaged or of another kind does not replace the files in use.
	if err := os.WriteFile(filepath.Join(dir, "c1.pem"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err == nil {
		t.Error("rubbish was loaded")
	}
	if _, err := get(t, s, conf); err != nil {
		t.Errorf("after a failed reload: %v", err)
	}
}

// TestExpiryEndsConnectionsOfUsers: connections of nodes and coordinators go on until they are
// closed for another reason.
func TestExpiryEndsConnectionsOfUsers(t *testing.T) {
	dir := cluster(t)
	server := open(t, dir, "c1", KindCoordinator)
	conns := NewConnections(10)
	s := serve(t, server, conns)
	for name, kind := range map[string]Kind{"alice": KindUser, "n1": KindNode} {
		tr := &http.Transport{TLSClientConfig: open(t, dir, name, kind).ClientConfig(), ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if closed := conns.CloseEnded(server, time.Now().Add(CertLifetime-time.Hour)); len(closed) != 0 {
		t.Errorf("closed the connections of %v an hour before their certificates end", closed)
	}
	if closed := conns.CloseEnded(server, time.Now().Add(CertLifetime+time.Hour)); !slices.Equal(closed, []string{"user/alice has expired"}) {
		t.Errorf("closed the connections of %q, want alice's alone", closed)
	}
}

func TestRevokedCertificatesAreRefused(t *testing.T) {
	dir := cluster(t)
	server := open(t, dir, "c1", KindCoordinator)
	conns := NewConnections(10)
	s := serve(t, server, conns)
	alice := open(t, dir, "alice", KindUser)
	tr := &http.Transport{TLSClientConfig: alice.ClientConfig(), ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	held := func() error { // sends a request on one connection, which stays open
		res, err := (&http.Client{Transport: tr}).Get(s.URL)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		return err
	}
	if err := held(); err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(dir, []*big.Int{alice.Leaf().SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	if closed := conns.CloseEnded(server, time.Now()); len(closed) != 1 || closed[0] != "user/alice was revoked" {
		t.Errorf("closed the connections of %v", closed)
	}
	if err := held(); err == nil {
		t.Error("a revoked certificate was accepted")
	}
	if _, err := get(t, s, open(t, dir, "n1", KindNode).ClientConfig()); err != nil {
		t.Errorf("one that was not revoked: %v", err)
	}
	_, issued, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range issued {
		if i.Revoked != (i.Name == "alice") || !i.Current {
			t.Errorf("%s/%s: revoked %v, current %v", i.Kind, i.Name, i.Revoked, i.Current)
		}
	}
	// A new certificate with the same name is accepted again.
	if err := IssueCert(dir, CertRequest{Kind: KindUser, Name: "alice"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, s, open(t, dir, "alice", KindUser).ClientConfig()); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
}

func TestRevocationListsNeedSignatureAndNewerNumber(t *testing.T) {
	dir, other := cluster(t), cluster(t)
	m := open(t, dir, "c1", KindCoordinator)
	alice := open(t, dir, "alice", KindUser).Leaf()
	if _, err := Revoke(dir, []*big.Int{big.NewInt(7)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(dir, []*big.Int{alice.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(other, []*big.Int{big.NewInt(9)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(filepath.Join(other, "ca.crl"))
	if err != nil {
		t.Fatal(err)
	}
	if newer, err := m.SetCRL(second); err != nil || !newer || !m.Revoked(alice) {
		t.Errorf("the second list: %v, %v", newer, err)
	}
	if newer, err := m.SetCRL(first); err != nil || newer || !m.Revoked(alice) {
		t.Errorf("an older list takes a revocation back: %v, %v", newer, err)
	}
	if _, err := m.SetCRL(foreign); !errors.Is(err, fault.Denied) {
		t.Errorf("a list of another CA: %v", err)
	}
	if _, err := m.SetCRL([]byte("rubbish")); !errors.Is(err, fault.Invalid) {
		t.Errorf("rubbish: %v", err)
	}
	if !m.Revoked(alice) {
		t.Error("a refused list replaced the good one")
	}
}

// TestConnectionsOfOneNameAreBounded opens connections that finish their handshake, and sends a
// request on none of them until all are open: silent connections count too.
func TestConnectionsOfOneNameAreBounded(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		dir := cluster(t)
		conns := NewConnections(2)
		s := serve(t, open(t, dir, "c1", KindCoordinator), conns)
		conf := open(t, dir, "alice", KindUser).ClientConfig()
		conf.NextProtos = []string{protocol}
		ends := make(chan error, 5)
		for range cap(ends) {
			conn, err := (&tls.Dialer{Config: conf}).DialContext(context.Background(), "tcp", strings.TrimPrefix(s.URL, "https://"))
			if err != nil {
				ends <- nil
				continue
			}
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			go func() {
				_, err := io.Copy(io.Discard, conn) // on connections that stay open, the settings of HTTP/2 arrive
				ends <- err
			}()
		}
		for range cap(ends) - 2 {
			if err := <-ends; errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("%s: more than 2 connections of one name are open", protocol)
			}
		}
		conns.mu.Lock()
		if n := conns.by["user/alice"]; n != 2 {
			t.Errorf("%s: %d connections of one name are counted, want 2", protocol, n)
		}
		conns.mu.Unlock()
	}
}

// certificateOnly is a client's connection that sends nothing after the client's certificate.
type certificateOnly struct {
	net.Conn
	shown bool // the certificate was sent
}

// Write implements net.Conn. It is called with whole records.
func (c *certificateOnly) Write(b []byte) (int, error) {
	const header, encrypted = 5, 23
	for rest := b; len(rest) > 0 && !c.shown; {
		record := rest[:header+int(rest[3])<<8+int(rest[4])]
		rest = rest[len(record):]
		c.shown = record[0] == encrypted // the first encrypted record is the certificate
		if _, err := c.Conn.Write(record); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// TestANameCountsOnceItsKeyIsProven presents alice's certificate, which is no secret, from callers
// without its key. However many there are, alice can connect.
func TestANameCountsOnceItsKeyIsProven(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, silent := range map[string]bool{"nothing follows the certificate": true, "another key signs": false} {
		dir := cluster(t)
		server, alice := open(t, dir, "c1", KindCoordinator), open(t, dir, "alice", KindUser)
		conns := NewConnections(2)
		// A server that is slow to tell of an end: a handshake that failed is known all the while.
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		s.Config.ConnState = func(c net.Conn, state http.ConnState) {
			if state != http.StateClosed {
				conns.Observe(c, state)
			}
		}
		startTLS(s, conns.Config(server.ServerConfig()))
		t.Cleanup(s.Close)

		strange := alice.ClientConfig()
		strange.ServerName = "127.0.0.1"
		strange.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{alice.Leaf().Raw}, PrivateKey: other}, nil
		}
		var open []net.Conn
		for range 2 {
			tcp, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			_ = tcp.SetDeadline(time.Now().Add(10 * time.Second))
			conn := tcp
			if silent {
				conn = &certificateOnly{Conn: tcp}
			}
			if err := tls.Client(conn, strange).Handshake(); err != nil {
				t.Fatal(err)
			}
			if !silent { // the server has given up when it says so
				if _, err := io.Copy(io.Discard, tcp); err != nil {
					t.Fatal(err)
				}
			}
			open = append(open, tcp)
		}
		shown := func() (n int) {
			conns.mu.Lock()
			defer conns.mu.Unlock()
			for _, x := range conns.open {
				if x.leaf != nil {
					n++
				}
			}
			return n
		}
		for limit := time.Now().Add(10 * time.Second); shown() < len(open); {
			if time.Now().After(limit) {
				t.Fatalf("%s: the server has seen %d certificates", name, shown())
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := get(t, s, alice.ClientConfig()); err != nil {
			t.Errorf("%s: alice is refused: %v", name, err)
		}
		// Connections that a revoked certificate opened are closed, also during the handshake.
		_, err := Revoke(dir, []*big.Int{alice.Leaf().SerialNumber}, time.Now())
		if err := errors.Join(err, server.Reload()); err != nil {
			t.Fatal(err)
		}
		if closed := conns.CloseEnded(server, time.Now()); len(closed) < len(open) {
			t.Errorf("%s: closed the connections of %v", name, closed)
		}
		if silent {
			for _, c := range open {
				if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("a handshake with a revoked certificate goes on")
				}
			}
		}
	}
}

func TestSecondIssueKeepsKinds(t *testing.T) {
	dir := cluster(t)
	if _, err := Issue(dir, CertRequest{Kind: KindUser, Name: "n1"}, time.Now()); !errors.Is(err, fault.Exists) {
		t.Errorf("user/n1 would replace node/n1: %v", err)
	}
	_, issued, err := List(dir)
	if err != nil || len(issued) != 3 {
		t.Fatalf("%d certificates, %v", len(issued), err)
	}
	if err := IssueCert(dir, CertRequest{Kind: KindUser, Name: "alice"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	_, issued, err = List(dir)
	if err != nil || len(issued) != 4 {
		t.Fatalf("the first certificate of alice is no longer listed: %d certificates, %v", len(issued), err)
	}
}

// TestConnectionsWithoutCertificateAreBounded opens connections of one address to a
// server where certificates are optional.
func TestConnectionsWithoutCertificateAreBounded(t *testing.T) {
	dir := cluster(t)
	conns := NewConnections(3)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := open(t, dir, "c1", KindCoordinator).ServerConfig()
	server.ClientAuth = tls.VerifyClientCertIfGiven
	s.Config.ConnState = conns.Observe
	startTLS(s, conns.Config(server))
	defer s.Close()
	conf, err := TokenConfig(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ok := 0
	for range 6 {
		conn, err := tls.Dial("tcp", s.Listener.Addr().String(), conf)
		if err != nil {
			continue
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: c\r\n\r\n"); err != nil {
			continue
		}
		if n, _ := conn.Read(make([]byte, 1)); n == 1 {
			ok++
		}
	}
	if ok != 3 {
		t.Errorf("%d connections of one address are open, want 3", ok)
	}
	s.CloseClientConnections()
	s.Close()
	conns.mu.Lock()
	defer conns.mu.Unlock()
	if len(conns.open) != 0 || len(conns.by) != 0 {
		t.Errorf("after their end %d connections are known, and %v counted", len(conns.open), conns.by)
	}
}

// A certificate that nobody would accept is not issued.
func TestCertificateThatWouldHaveExpiredIsRefused(t *testing.T) {
	dir := cluster(t)
	r := CertRequest{Kind: KindUser, Name: "late"}
	if _, err := Issue(dir, r, time.Now().Add(caLifetime+time.Hour)); !errors.Is(err, fault.Invalid) {
		t.Errorf("after the authority's end: %v", err)
	}
	r.Lifetime = -time.Hour
	if _, err := Issue(dir, r, time.Now()); !errors.Is(err, fault.Invalid) {
		t.Errorf("for less than no time: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "late.pem")); err == nil {
		t.Error("its file is there")
	}
}

// TestListReplacedWhileItIsRead: the member remembers the state of the file before the read;
// otherwise it would never read the new list.
func TestListReplacedWhileItIsRead(t *testing.T) {
	dir := cluster(t)
	path := filepath.Join(dir, caCRL)
	var lists [2][]byte
	for i, name := range []string{"c1", "n1"} {
		leaf, err := ReadCertificate(filepath.Join(dir, name+".pem"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Revoke(dir, []*big.Int{leaf.SerialNumber}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if lists[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	m := open(t, dir, "alice", KindUser)
	m.revoked = &revocations{}
	// A pipe in place of the file holds the reader until the file was replaced.
	if err := errors.Join(syscall.Mkfifo(path+".pipe", 0o600), os.Rename(path+".pipe", path)); err != nil {
		t.Fatal(err)
	}
	reloaded := make(chan error, 1)
	go func() { reloaded <- m.Reload() }()
	pipe, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".new", lists[1], 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Write(lists[0]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pipe.Close(), <-reloaded, m.Reload()); err != nil {
		t.Fatal(err)
	}
	leaf, err := ReadCertificate(filepath.Join(dir, "n1.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !m.Revoked(leaf) {
		t.Error("the second list was never read")
	}
}

// TestAReloadTakesOtherFiles: other files are used and followed, including the earlier files when
// they are named again; files that cannot be used are not.
func TestAReloadTakesOtherFiles(t *testing.T) {
	dir := cluster(t)
	m := open(t, dir, "c1", KindCoordinator)
	first := m.Leaf()
	if err := IssueCert(dir, CertRequest{Kind: KindCoordinator, Name: "c9", Hosts: []string{"127.0.0.1"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	from := func(name string) error {
		return m.ReloadFrom(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	}
	if err := from("c9"); err != nil || m.Leaf().Subject.CommonName != "coordinator/c9" {
		t.Errorf("other files: %v, %s", err, m.Leaf().Subject)
	}
	for _, bad := range []string{"gone", "n1"} { // n1 is a node
		if err := from(bad); err == nil || m.Leaf().Subject.CommonName != "coordinator/c9" {
			t.Errorf("%s: %v, %s", bad, err, m.Leaf().Subject)
		}
	}
	if err := IssueCert(dir, CertRequest{Kind: KindCoordinator, Name: "c9", Hosts: []string{"127.0.0.1", "c9"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := m.Reload(); err != nil || !slices.Contains(m.Leaf().DNSNames, "c9") {
		t.Errorf("the other files are not followed: %v, %v", err, m.Leaf().DNSNames)
	}
	if err := from("c1"); err != nil || m.Leaf().SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Errorf("the first files again: %v, %s", err, m.Leaf().Subject)
	}
}

// TestWhichCertificateIsCurrent: the certificate in NAME.pem, whatever other files there are;
// without that file, the newest of the same kind and name, which is in use on another machine.
func TestWhichCertificateIsCurrent(t *testing.T) {
	dir := t.TempDir()
	start := time.Now()
	if err := CreateCA(dir, start); err != nil {
		t.Fatal(err)
	}
	issue := func(kind Kind, name string, age time.Duration) {
		t.Helper()
		if err := IssueCert(dir, CertRequest{Kind: kind, Name: name, Hosts: []string{"10.0.0.1"}}, start.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, want ...string) {
		t.Helper()
		_, issued, err := List(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, i := range issued {
			if i.Current {
				got = append(got, fmt.Sprintf("%s/%s %.0fh", i.Kind, i.Name, start.Add(-backdate).Sub(i.Cert.NotBefore).Hours()))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: current are %q, want %q", what, got, want)
		}
	}
	issue(KindUser, "x", 3*time.Hour)
	move("x.pem", "a.pem")
	issue(KindUser, "x", 2*time.Hour)
	want("a former one under another name", "user/x 2h")
	move("x.pem", "b.pem")
	want("none in x.pem", "user/x 2h")
	issue(KindNode, "x", time.Hour)
	want("another kind in x.pem", "node/x 1h", "user/x 2h")
	move("a.pem", "x.pem")
	want("the former one put back", "node/x 1h", "user/x 3h")
	if err := os.RemoveAll(filepath.Join(dir, issuedDir)); err != nil {
		t.Fatal(err)
	}
	want("nothing but files", "user/x 3h")
}
