package wire

import (
	"errors"
	"fmt"
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

func TestMessageKeepsCause(t *testing.T) {
	cause := errors.New("disk full")
	err := fault.New(fault.Exhausted, "write spill: %w", cause)
	if !errors.Is(err, cause) || !errors.Is(err, fault.Exhausted) {
		t.Errorf("%v lost its cause or class", err)
	}
}
