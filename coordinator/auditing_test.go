package coordinator

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/audit"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
)

// TestAuditLogHasWhoDidWhat makes calls as several callers: those that change something and
// those that were refused for want of rights are in the file when they are answered, with
// their outcome; reads and reports of nodes are not.
func TestAuditLogHasWhoDidWhat(t *testing.T) {
	b, as, base := secure(t)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.submit(groupJob("mine", 1))
	b.waitForEnd("mine", succeeded)
	bob, root := droverv1connect.NewClientServiceClient(as("user/bob"), base), droverv1connect.NewClientServiceClient(as("user/root"), base)
	_, _ = bob.ListJobs(b.ctx, connect.NewRequest(&droverv1.ListJobsRequest{}))
	if _, err := bob.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"})); err == nil {
		t.Error("bob may drain a node")
	}
	if _, err := root.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"})); err != nil {
		t.Error(err)
	}
	if _, err := root.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "no such\njob"})); err == nil {
		t.Error("a job that does not exist was stopped")
	}
	debug := droverv1connect.NewDebugServiceClient(as("user/root"), base)
	st, err := debug.Monitor(b.ctx, connect.NewRequest(&droverv1.MonitorRequest{Node: "n9"}))
	if err != nil {
		t.Fatal(err)
	}
	for st.Receive() {
		t.Error("the log of a node that does not exist")
	}
	_ = st.Close() // it was refused

	path := filepath.Join(b.cfg.Dir, "audit.jsonl")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r.Time.IsZero() || (r.Error == "") != (r.Outcome == "ok") || strings.HasPrefix(r.Actor, "user/") && !strings.HasPrefix(r.From, "127.0.0.1:") {
			t.Errorf("%+v", r)
		}
		got = append(got, strings.Join([]string{r.Actor, r.Call, r.Target, r.Outcome}, " | "))
	}
	want := []string{
		"local | SubmitJob | job 1 mine | ok",
		"user/bob | DrainNode |  | not allowed",
		"user/root | DrainNode | node n1 | ok",
		`user/root | StopJob | job no such\u000ajob | not found`,
		"user/root | Monitor | node n9 | not found",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// openTestAuditor returns an auditor whose log is at path, in files of maxBytes.
func openTestAuditor(t *testing.T, path string, maxBytes int64) *auditor {
	t.Helper()
	log, err := audit.Open(path, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	a := &auditor{log: log, now: time.Now, failure: slog.New(slog.NewTextHandler(t.Output(), nil))}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// Nothing that a user chose controls the terminal of who reads the audit log, and no record is long.
func TestAuditRecordsHaveNoControls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := openTestAuditor(t, path, 0)
	for _, text := range []string{"\u009b2J", "\x7f", "\u202egpj.exe\u202c", "\u2066a\u2069", "\u2028b\u2029", "\x9b2J", "\x1b]0;a\a", strings.Repeat("\u0085", 64<<10)} {
		ctx := context.WithValue(t.Context(), identityKey{}, identity{kind: kindUser, name: "user/" + text})
		a.record(ctx, droverv1connect.ClientServiceStopJobProcedure, "", "job "+text, fault.New(fault.NotFound, "there is no job %s", text))
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(file), "\n"), "\n")
	if len(lines) != 8 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if plain.HasControl(line) || len(line) > 2000 {
			t.Errorf("%d bytes: %q", len(line), clipText(line, 500))
		}
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil || plain.HasControl(r.Actor+r.Target+r.Error) {
			t.Errorf("%+q %v", r, err)
		}
	}
}

// TestEveryChangeIsAudited holds auditedCalls to the API: a call of users that is no read
// stands in it, but for uploads, whose use is the submission.
func TestEveryChangeIsAudited(t *testing.T) {
	reads := []string{"List", "Get", "Watch", "Has", "Plan", "Status", "Calibration", "Logs", "Events", "Usage", "PutBlob"}
	for name, p := range procedures {
		if p.access == accessNode || p.access == accessPeer {
			continue
		}
		call := name[strings.LastIndex(name, "/")+1:]
		read := slices.ContainsFunc(reads, func(prefix string) bool { return strings.HasPrefix(call, prefix) })
		if read == auditedCalls[name] {
			t.Errorf("%s: a read %t, in the audit log %t", name, read, auditedCalls[name])
		}
	}
}
