package peer

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/pki"
)

// newMember returns the coordinator c1, with an authority of its own in dir.
func newMember(t *testing.T, dir string) *pki.Member {
	t.Helper()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindCoordinator, Name: "c1", Hosts: []string{"127.0.0.1"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	m, err := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "c1.pem"), Key: filepath.Join(dir, "c1.key")}.Open(pki.KindCoordinator)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// listen starts a network of a member on a port of 127.0.0.1.
func listen(t *testing.T, m *pki.Member) *Network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := Listen(Config{Listener: l, Member: m})
	n.Start()
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// waitOpen waits until the network follows so many connections.
func waitOpen(t *testing.T, n *Network, want int) {
	t.Helper()
	limit := time.After(handshakeLimit / 2)
	for tick := time.NewTicker(time.Millisecond); ; {
		n.mu.Lock()
		open := len(n.open)
		n.mu.Unlock()
		if open == want {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%d connections are open, want %d", open, want)
		}
	}
}

// A connection whose other end says nothing is in its handshake for handshakeLimit.
// CloseRevoked is part of what each coordinator does every second, so it must not
// wait for that.
func TestCloseRevokedDoesNotWaitForHandshakes(t *testing.T) {
	n := listen(t, newMember(t, t.TempDir()))
	silent, err := net.Dial("tcp", n.cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	waitOpen(t, n, 1)
	// Connections are followed before their handshake begins: it has begun when it
	// has read something, which a part of a record is.
	if _, err := silent.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	limit := time.After(handshakeLimit / 2)
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

// Strangers take all handshakes that may be in progress at once, and say nothing. A coordinator connects all the same,
// from an address of its own or theirs, and the connections that are closed for it are those of who has most.
func TestSilentStrangersLockOutNoCoordinator(t *testing.T) {
	const own, other = "127.0.0.1", "127.0.0.2"
	for name, stranger := range map[string]func(i int) string{
		"one other address":   func(int) string { return other },
		"its own address":     func(int) string { return own },
		"as many addresses":   func(i int) string { return fmt.Sprintf("127.0.1.%d", i) },
		"two other addresses": func(i int) string { return fmt.Sprintf("127.0.1.%d", i%2) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t, t.TempDir())
			n, caller := listen(t, m), listen(t, m)
			open := func(from string) net.Conn {
				t.Helper()
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", n.cfg.Address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			defer time.AfterFunc(handshakeLimit/2, func() { _ = n.Close() }).Stop() // ends what waits below
			first := open("127.0.0.3")
			waitOpen(t, n, 1)
			for i := range maxHandshakes - 1 {
				open(stranger(i))
			}
			waitOpen(t, n, maxHandshakes)
			for range 3 {
				c, err := caller.Dial(raft.ServerAddress(n.cfg.Address), handshakeLimit/2)
				if err != nil {
					t.Fatalf("a coordinator is refused: %v", err)
				}
				defer c.Close()
				got, err := n.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer got.Close()
				if got.RemoteAddr().String() != c.LocalAddr().String() {
					t.Fatalf("accepted %v, want %v", got.RemoteAddr(), c.LocalAddr())
				}
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			known := false
			for c := range n.open {
				known = known || c.RemoteAddr().String() == first.LocalAddr().String()
			}
			if known == (name == "as many addresses") {
				t.Errorf("the oldest connection, the only one of its address, is open: %v", known)
			}
		})
	}
}
