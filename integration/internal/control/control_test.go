package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fuzztest"
)

const testTimeout = 30 * time.Second

// serve runs a handler on a socket.
func serve(t *testing.T, h Handler) (ctx context.Context, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "c")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ctx, socket
}

func TestRequestAndAnswer(t *testing.T) {
	want := Request{Op: LoadFile, Local: "a b", Remote: "/x", BlockBytes: 5, Places: []int{1, 1, 2}}
	ctx, socket := serve(t, func(_ context.Context, r Request) (string, error) {
		if d := cmp.Diff(want, r); d != "" {
			return "", errors.New(d)
		}
		return "fine", nil
	})
	got, err := Call(ctx, socket, want)
	if err != nil || got != "fine" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Call(ctx, socket, Request{Op: Stop}); err == nil || !strings.Contains(err.Error(), "stop") {
		t.Errorf("error %v does not name the operation", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	ctx, socket := serve(t, func(ctx context.Context, _ Request) (string, error) {
		<-ctx.Done() // a handler that does not answer before the context ends
		return "", ctx.Err()
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := Call(short, socket, Request{Op: Stop}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// TestARequestThatEndsTheServerIsAnswered uses a handler that ends the server, as Stop does.
func TestARequestThatEndsTheServerIsAnswered(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	serving, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	context.AfterFunc(serving, func() { close(ended) }) // runs at about the time of the server's own functions
	done := make(chan error, 1)
	go func() {
		done <- Serve(serving, l, func(context.Context, Request) (string, error) {
			end()
			<-ended
			return "ended", nil
		})
	}()
	if got, err := Call(ctx, socket, Request{Op: Stop}); err != nil || got != "ended" {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDialPassesBytesBothWaysAndTheirEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { // echoes everything it received at the end
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		if err == nil {
			_, err = fmt.Fprintf(c, "got %s", b)
		}
		served <- err
	}()
	ctx, socket := serve(t, func(context.Context, Request) (string, error) { return "", errors.New("not for the handler") })
	c, err := DialThrough(ctx, socket, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "words"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "got words" {
		t.Errorf("%q, %v", b, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := DialThrough(ctx, socket, l.Addr().String()); err == nil {
		t.Error("dialling an address without a listener succeeds")
	}
}

func TestEveryOperationHasANameOfItsOwn(t *testing.T) {
	if int(ResetMachine)+1 != len(opNames) {
		t.Fatalf("%v is not the last of %d operations", ResetMachine, len(opNames)-1)
	}
	for op := Dial; op <= ResetMachine; op++ {
		got, err := ParseOp(op.String())
		if err != nil || got != op {
			t.Errorf("%d: %q is read as %d, %v", op, op, got, err)
		}
	}
	for _, bad := range []string{"", "nonsense", "op(99)"} {
		if _, err := ParseOp(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"op":"load-file","places":[1,2]}`))
	f.Add([]byte(`{"op":"nonsense"}`))
	fuzztest.Run(f, func(t *testing.T, in []byte) {
		var r, again Request
		if json.Unmarshal(in, &r) != nil || r.Op == 0 {
			return
		}
		b, err := json.Marshal(r)
		if err == nil {
			err = json.Unmarshal(b, &again)
		}
		if err != nil {
			t.Fatal(err)
		}
		if again.Op != r.Op || again.N != r.N || len(again.Places) != len(r.Places) {
			t.Errorf("%+v came back as %+v", r, again)
		}
	})
}
