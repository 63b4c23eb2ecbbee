package coordinator

import (
	"errors"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// events returns the events of a kind.
func (b *testCluster) events(kind string) (texts []string) {
	b.t.Helper()
	st, err := b.client.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{}))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	for st.Receive() {
		if st.Msg().Kind == kind {
			texts = append(texts, st.Msg().Text)
		}
	}
	if err := st.Err(); err != nil {
		b.t.Fatal(err)
	}
	return texts
}

func TestRevocationReachesOpenConnections(t *testing.T) {
	b, as, base := secure(t)
	http1 := as("user/alice")
	alice := droverv1connect.NewClientServiceClient(http1, base)
	bob := droverv1connect.NewClientServiceClient(as("user/bob"), base)
	status := func(c droverv1connect.ClientServiceClient) error {
		_, err := c.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		return err
	}
	if err := errors.Join(status(alice), status(bob)); err != nil {
		t.Fatal(err)
	}
	stream := make(chan error, 1)
	go func() {
		st, err := alice.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
		for err == nil && st.Receive() {
			continue
		}
		if err == nil {
			err = errors.Join(st.Err(), st.Close())
		}
		stream <- err
	}()
	b.waitUntil("the stream is open", func() bool { return b.metric(inUse("streams")) == 1 })
	dir := filepath.Dir(b.caFile)
	_, issued, err := pki.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(issued, func(x pki.Issued) bool { return x.Name == "alice" })
	if _, err := pki.Revoke(dir, []*big.Int{issued[i].Cert.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-stream:
		if err == nil {
			t.Error("the stream of a revoked certificate ended as if all were well")
		}
	case <-time.After(waitLimit):
		t.Fatal("the stream of a revoked certificate goes on")
	}
	b.waitUntil("calls are refused", func() bool { return status(alice) != nil })
	if err := status(bob); err != nil {
		t.Errorf("another user: %v", err)
	}
	// Nodes get the list, signed by the CA, from the coordinator.
	res, err := as("node/n1").Get(base + pki.CRLPath)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	crl, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	node, err := pki.Files{CA: b.caFile, Cert: filepath.Join(dir, "n1.pem"), Key: filepath.Join(dir, "n1.key")}.Open(pki.KindNode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.SetCRL(crl); err != nil || !node.Revoked(issued[i].Cert) {
		t.Errorf("the node's list: %v", err)
	}
}

// TestExpiryReachesOpenConnections: the certificate of a user that ends gives no rights to connections that are open,
// that of a node lets them go on.
func TestExpiryReachesOpenConnections(t *testing.T) {
	var ahead atomic.Int64
	b, as, base := secureWith(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	alice, n1 := as("user/alice"), as("node/n1")
	status := func() error {
		_, err := droverv1connect.NewClientServiceClient(alice, base).Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		return err
	}
	list := func() (string, error) {
		res, err := n1.Get(base + pki.CRLPath)
		if err != nil {
			return "", err
		}
		return res.Status, res.Body.Close()
	}
	before, err := list()
	if err := errors.Join(err, status()); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(pki.CertLifetime + time.Hour))
	// The connection may be closed before the answer.
	if err := status(); err == nil || connect.CodeOf(err) == connect.CodePermissionDenied && !strings.Contains(err.Error(), "this certificate has expired: ask") {
		t.Errorf("a call on a connection whose certificate has expired since: %v", err)
	}
	if after, err := list(); err != nil || after != before {
		t.Errorf("a node's connection whose certificate has expired since: %q, %v; before %q", after, err, before)
	}
}

func TestExpiryIsShown(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(pki.CertLifetime - 20*24*time.Hour) }
	})
	n1 := droverv1connect.NewNodeServiceClient(as("node/n1"), base)
	_, err := n1.Report(b.ctx, connect.NewRequest(&droverv1.ReportRequest{Node: 1}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"the certificate of coordinator/c expires in 19 days, on ", "the certificate of node/n1 expires in 19 days, on "} {
		b.waitUntil("there is an event: "+want, func() bool {
			return slices.ContainsFunc(b.events("certificate.expires"), func(s string) bool { return strings.HasPrefix(s, want) })
		})
	}
	b.waitUntil("the list is looked at again", func() bool {
		return b.metric("drover_tls_certificate_expiry_timestamp_seconds") > float64(time.Now().Unix())
	})
	if n := len(b.events("certificate.expires")); n != 2 {
		t.Errorf("%d events about 2 certificates in one day", n)
	}
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	res, err := root.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
	if err != nil || res.Msg.CertificateUntilMs < time.Now().UnixMilli() {
		t.Errorf("status: %v, %v", res, err)
	}
}

func TestOperatorsNeedTheirKind(t *testing.T) {
	for _, o := range []string{"alice", "node/n1", "user/", ""} {
		c := Config{Dir: t.TempDir(), Operators: []string{o}}
		l, err := ListenLocal(filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		c.Local = l
		if err := c.setDefaults(); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "such as user/") {
			t.Errorf("operator %q: %v", o, err)
		}
		_ = l.Close()
	}
}

func TestNodesAndUsersAreKeptApart(t *testing.T) {
	b, as, base := secure(t)
	client := droverv1connect.NewClientServiceClient(as("node/n1"), base)
	if _, err := client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{})); !errors.Is(wire.FromError(err), fault.Denied) {
		t.Errorf("a node as a user: %v", err)
	}
	node := droverv1connect.NewNodeServiceClient(as("user/alice"), base)
	if _, err := node.Report(b.ctx, connect.NewRequest(&droverv1.ReportRequest{Node: 1})); !errors.Is(wire.FromError(err), fault.Denied) {
		t.Errorf("a user as a node: %v", err)
	}
}

// TestRevocationReachesTheOtherCoordinators: the list is copied to one of two coordinators, and the other one refuses
// the certificate too.
func TestRevocationReachesTheOtherCoordinators(t *testing.T) {
	members := map[string]*pki.Member{}
	var s *testServers
	folder := func(id string) string { return filepath.Join(s.dir, "tls-"+id) }
	copyFile := func(name, id string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		if err == nil {
			err = errors.Join(os.MkdirAll(folder(id), 0o700), os.WriteFile(filepath.Join(folder(id), name), b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s = prepareServers(t, 2, func(c *Config) {
		copyFile("ca.pem", c.ID)
		var err error
		if c.Certificate, err = (pki.Files{CA: filepath.Join(folder(c.ID), "ca.pem"), Cert: filepath.Join(s.dir, c.ID+".pem"), Key: filepath.Join(s.dir, c.ID+".key")}).Open(pki.KindCoordinator); err != nil {
			t.Fatal(err)
		}
		c.CertificatesEvery = 20 * time.Millisecond
		members[c.ID] = c.Certificate
	})
	for _, id := range s.ids {
		s.start(id, func(c *Config) { c.Bootstrap, c.Servers = true, s.peers(s.ids...) })
	}
	s.awaitVoters(s.ids...)
	s.files(pki.CertRequest{Kind: pki.KindUser, Name: "alice"})
	alice, err := pki.ReadCertificate(filepath.Join(s.dir, "alice.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Revoke(s.dir, []*big.Int{alice.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	copyFile("ca.crl", "c1")
	s.waitUntil("the one that has the list refuses", func() bool { return members["c1"].Revoked(alice) })
	s.waitUntil("the other one refuses too", func() bool { return members["c2"].Revoked(alice) })
}
