package coordinator

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// pausablePair returns both ends of a connection, the first of which can be paused.
func pausablePair(t *testing.T) (*pausableConn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := newPausingListener(l).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near.(*pausableConn), far
}

// A connection is not read during a pause, is read after it, and can be closed in it.
func TestPausedConnectionIsNotRead(t *testing.T) {
	c, far := pausablePair(t)
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	const pause = 200 * time.Millisecond
	began := time.Now()
	c.pause(pause)
	c.pause(time.Millisecond) // a shorter one changes nothing
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil || time.Since(began) < pause {
		t.Errorf("%d bytes, %v, after %s", n, err, time.Since(began))
	}
	c.pause(time.Hour)
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read of a closed connection: %v", err)
	}
}

// Who is refused is paused, the longer the more calls are refused, up to a second; nobody else is.
func TestRefusedCallsPauseTheirConnection(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newBackpressure()
	b.now = func() time.Time { return now }
	c, _ := pausablePair(t)
	ctx := context.WithValue(context.Background(), connKey{}, c)
	user, local := identity{kind: kindUser, name: "user/a"}, identity{kind: kindLocal, name: "local"}
	for _, f := range []struct {
		id  identity
		err error
	}{{user, nil}, {user, fault.New(fault.Invalid, "a job that is wrong")}, {local, fault.Overload("later")}} {
		if b.refused(ctx, f.id, f.err); c.until.Load() != 0 {
			t.Errorf("%v is paused for %v", f.id, f.err)
		}
	}
	b.refused(context.Background(), user, fault.Overload("later")) // over a socket
	for i, want := range []time.Duration{2 * pausePerRefusal, 3 * pausePerRefusal} {
		if i > 0 {
			b.refused(ctx, user, fault.Overload("later"))
		}
		if d := b.extend("user/a"); i == 0 && d != pausePerRefusal || i > 0 && d != want {
			t.Errorf("pause %d is %s", i, d)
		}
	}
	if c.until.Load() == 0 {
		t.Error("the connection is not paused")
	}
	for range 1000 {
		b.refused(ctx, user, fault.New(fault.Denied, "no"))
	}
	if d := b.extend("user/a"); d != longestPause {
		t.Errorf("a thousand refusals pause for %s", d)
	}
	if d := b.extend("user/b"); d != pausePerRefusal {
		t.Errorf("another user's first refusal pauses for %s", d)
	}
	now = now.Add(2 * longestPause)
	if d := b.extend("user/a"); d != pausePerRefusal {
		t.Errorf("after a quiet time a refusal pauses for %s", d)
	}
}

// An address that opens more connections than it may has to wait with them, and those that would wait too long
// are closed.
func TestConnectionsOfOneAddressTakeTurns(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &pausingListener{l, newRates(0.5)} // six at once, then one every two seconds
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	accept := func() time.Duration {
		t.Helper()
		c, err := p.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return time.Duration(c.(*pausableConn).until.Load())
	}
	for i := range 6 {
		if dial("127.0.0.1"); accept() > time.Second {
			t.Errorf("connection %d waits", i)
		}
	}
	for i := range 2 {
		dial("127.0.0.1")
		if wait := accept(); wait < time.Second || wait > longestQueue {
			t.Errorf("connection %d above the burst waits %s", i, wait)
		}
	}
	late := dial("127.0.0.1")
	dial("127.0.0.2")
	if wait := accept(); wait > time.Second {
		t.Errorf("the first one of another address waits %s", wait)
	}
	if _, err := late.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that would wait too long is open")
	}
}
