package coordinator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/audit"
	"github.com/drover-run/drover/coordinator/coordtest"
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
		"user/root | StopJob | job no such\njob | not found",
		"user/root | Monitor | node n9 | not found",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
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
