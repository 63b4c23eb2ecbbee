package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/drover-run/drover/internal/fault"
)

func TestErrorClassesRoundTrip(t *testing.T) {
	for _, class := range fault.Classes() {
		sent := Error(fault.New(class, "job %q: %v", "wc", "why"))
		var ce *connect.Error
		if !errors.As(sent, &ce) {
			t.Fatalf("%v: not a connect error", class)
		}
		got := FromError(fmt.Errorf("call: %w", ce))
		if !errors.Is(got, class) || fault.Class(got) != class {
			t.Errorf("class %v came back as %v", class, fault.Class(got))
		}
		if want := `job "wc": why`; got.Error() != want {
			t.Errorf("text %q, want %q", got.Error(), want)
		}
	}
}

func TestUnclassifiedErrorIsInternal(t *testing.T) {
	if c := connect.CodeOf(Error(errors.New("boom"))); c != connect.CodeInternal {
		t.Errorf("code %v", c)
	}
}

// TestAFailedDialIsUnavailable: a dial that ends by its own time limit looks like a deadline of the call, which has no
// class.
func TestAFailedDialIsUnavailable(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"a dial's limit", connect.NewError(connect.CodeDeadlineExceeded, dial), fault.Unavailable},
		{"a refused dial", connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), fault.Unavailable},
		{"the call's limit", connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), nil},
		{"a read's limit", connect.NewError(connect.CodeDeadlineExceeded, &net.OpError{Op: "read", Err: context.DeadlineExceeded}), nil},
	} {
		if got := fault.Class(FromError(c.err)); !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestMessageKeepsCause(t *testing.T) {
	cause := errors.New("disk full")
	err := fault.New(fault.Exhausted, "write spill: %w", cause)
	if !errors.Is(err, cause) || !errors.Is(err, fault.Exhausted) {
		t.Errorf("%v lost its cause or class", err)
	}
}

// Streams share the error of their end, and each asks what it says: nobody may write to it. Only the race detector sees it.
func TestMarksOfASharedErrorAreOnlyRead(t *testing.T) {
	end := connect.NewError(connect.CodeUnknown, fmt.Errorf("the end of the messages: %w", io.EOF))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, notLeader := LeaderOf(end); notLeader || IsLeaderChanged(end) || IsNoMajority(end) || IsOverload(end) {
				t.Error("the end of a stream has a mark")
			}
		})
	}
	all.Wait()
}
