package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Each error of a coordinator is shown with its text alone, as one line, and with the exit code of its class, whichever call it answers.
func TestErrorsOfACoordinator(t *testing.T) {
	for code, want := range map[connect.Code]int{
		connect.CodeInvalidArgument:    exitRefused,
		connect.CodeNotFound:           exitRefused,
		connect.CodeAlreadyExists:      exitRefused,
		connect.CodePermissionDenied:   exitRefused,
		connect.CodeUnauthenticated:    exitRefused,
		connect.CodeFailedPrecondition: exitRefused,
		connect.CodeAborted:            exitFailed,
		connect.CodeUnimplemented:      exitRefused,
		connect.CodeInternal:           exitFailed,
		connect.CodeUnknown:            exitFailed,
		connect.CodeDataLoss:           exitRefused,
	} {
		text := "a reason;\nand its cure"
		f := &fakeCoordinator{watchErr: connect.NewError(code, errors.New(text))}
		_, err := f.run(t, t.Context(), "job", "wait", "j")
		if exitCode(err) != want || err.Error() != text {
			t.Errorf("%s: exit code %d, %q, want %d", code, exitCode(err), errorText(err), want)
		}
	}
}

// Who may not remove a server is told that, and not that he may not list them, which the command does first.
func TestServerRemoveNeedsAnOperator(t *testing.T) {
	f := &fakeCoordinator{noOperator: "user alice"}
	if _, err := f.run(t, t.Context(), "operator", "server", "remove", "c2"); exitCode(err) != exitRefused || err.Error() != "user alice may not remove servers" {
		t.Errorf("exit code %d, %q", exitCode(err), errorText(err))
	}
}

// A call that a coordinator of another version does not have is refused with its name, and no panic.
func TestCallsThatACoordinatorDoesNotHave(t *testing.T) {
	for _, line := range []string{"status", "job status j", "job stop j", "job why j", "node list", "node status n", "node drain n", "scheduler status", "tenant list", "operator server list",
		"token list", "secret list -tenant t", "job inspect j", "monitor -recent 5", "task exec j s/0 true"} {
		f := &fakeCoordinator{attempts: []*droverv1.TaskAttempt{{Node: "n1"}}}
		out, err := f.run(t, t.Context(), strings.Fields(line)...)
		if err == nil || exitCode(err) != exitRefused && exitCode(err) != exitFailed || out != "" {
			t.Errorf("drover %s: exit code %d, %v, %q", line, exitCode(err), err, out)
		}
		if text := errorText(err); strings.Contains(text, "\n") || strings.Contains(text, "nil") || text == "" {
			t.Errorf("drover %s: %q", line, text)
		}
	}
}

// Ctrl-C before the first answer leaves the job as well as later.
func TestCtrlCBeforeAnAnswer(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	f := &fakeCoordinator{watchHook: func(ctx context.Context) error {
		interrupt()
		<-ctx.Done()
		return ctx.Err()
	}}
	out, said, err := f.runBoth(t, ctx, "job", "wait", "j")
	if out != "" || exitCode(err) != exitDetached || !strings.HasPrefix(said, "detached; the job is still running: ") {
		t.Errorf("exit code %d, %v, %q, %q", exitCode(err), err, out, said)
	}
}
