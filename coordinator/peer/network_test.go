package peer

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/pki"
)

// A connection whose other end says nothing is in its handshake for handshakeLimit.
// CloseRevoked is part of what each coordinator does every second, so it must not
// wait for that.
func TestCloseRevokedDoesNotWaitForHandshakes(t *testing.T) {
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindCoordinator, Name: "c1", Hosts: []string{"c1"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	m, err := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "c1.pem"), Key: filepath.Join(dir, "c1.key")}.Open(pki.KindCoordinator)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := Listen(Config{Listener: l, Member: m})
	n.Start()
	defer n.Close()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	limit := time.After(handshakeLimit / 2)
	for tick := time.NewTicker(time.Millisecond); ; {
		n.mu.Lock()
		open := len(n.open)
		n.mu.Unlock()
		if open == 1 {
			break
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the connection was not accepted")
		}
	}
	// Connections are followed before their handshake begins: it has begun when it
	// has read something, which a part of a record is.
	if _, err := silent.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 { // at least one of them during the handshake
			n.CloseRevoked()
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-done:
	case <-limit:
		silent.Close() // ends the handshake
		<-done
		t.Errorf("CloseRevoked waited for a handshake")
	}
}
