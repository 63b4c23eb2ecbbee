package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
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
	var got []string
	for _, r := range auditRecords(t, path) {
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
	a := newAuditor(time.Now, slog.New(slog.NewTextHandler(t.Output(), nil)))
	a.log = log
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
		a.record(ctx, auditedCall{procedure: droverv1connect.ClientServiceStopJobProcedure, target: "job " + text}, fault.New(fault.NotFound, "there is no job %s", text))
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
			t.Errorf("%q %v", r.Target, err)
		}
	}
}

// TestRefusedCallsPushNoRecordOut has a user, many users, and strangers call in vain, again and again: the audit log keeps what
// an operator changed before, what a user changes meanwhile, a denied call among others, and how many have no record.
func TestRefusedCallsPushNoRecordOut(t *testing.T) {
	const flood, many = 10_000, 1000
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := openTestAuditor(t, path, 150_000)
	call := func(name, from, procedure, target string, err error) {
		ctx := context.WithValue(t.Context(), identityKey{}, identity{kind: kindUser, name: name})
		a.record(ctx, auditedCall{procedure: procedure, from: from, target: target}, err)
	}
	stop, list := droverv1connect.ClientServiceStopJobProcedure, droverv1connect.ClientServiceListJobsProcedure
	notFound := fault.New(fault.NotFound, "there is no job")
	call("user/root", "192.0.2.1:1", droverv1connect.ClientServiceDrainNodeProcedure, "node n1", nil)
	for i := range flood {
		call("user/mallory", "192.0.2.2:1", stop, strings.Repeat("\x01", 500), notFound)
		call("", fmt.Sprintf("[2001:db8:0:%x::1]:1", i), list, "", unauthenticated("a token is needed"))
		call("", fmt.Sprintf("[2001:db8:0:%x::1]:1", i), stop, "", fault.Overload("come back"))
		call(fmt.Sprint("user/", i), "192.0.2.3:1", stop, "job of "+fmt.Sprint(i), notFound)
	}
	for i := range many {
		call("user/mallory", "192.0.2.2:1", stop, fmt.Sprint("own job ", i), nil)
		call("user/mallory", "192.0.2.2:1", stop, fmt.Sprint("broken off ", i), context.Canceled) // it may be stopped
	}
	call("user/mallory", "192.0.2.2:1", list, "", fault.New(fault.Denied, "it is not yours"))
	for _, r := range []*refusalRecords{a.users, a.strangers} {
		if len(r.of) > r.callers+2 {
			t.Errorf("%d callers are told apart", len(r.of))
		}
	}
	a.writeOmitted()
	a.writeOmitted() // there is nothing to write
	call("user/mallory", "192.0.2.2:1", stop, "a new minute", notFound)

	seen, targets := map[string]int{}, map[string]bool{}
	for _, r := range auditRecords(t, path) {
		who, _, _ := strings.Cut(r.Actor, "/")
		if r.Actor == "user/mallory" || r.Actor == otherCallers {
			who = r.Actor
		}
		seen[who+" "+r.Call+" "+r.Outcome] += max(1, r.Omitted)
		if r.Omitted > 0 {
			seen["summaries of "+who]++
		}
		targets[r.Target] = true
	}
	for _, want := range []string{"node n1", "own job 0", fmt.Sprint("own job ", many-1), "broken off 0", "a new minute"} {
		if !targets[want] {
			t.Errorf("the record about %q is gone", want)
		}
	}
	for what, want := range map[string]int{
		"user/mallory StopJob ok":                             many,
		"user/mallory StopJob unknown":                        many,
		"user/mallory StopJob not found":                      flood + 1,
		"user/mallory ListJobs not allowed":                   1,
		"summaries of user/mallory":                           1,
		"a caller without a certificate ListJobs not allowed": flood,
		"a caller without a certificate StopJob over a limit": flood,
	} {
		if seen[what] != want {
			t.Errorf("%d of %q, want %d", seen[what], what, want)
		}
	}
	if got := seen["user StopJob not found"] + seen["others StopJob not found"]; got != flood {
		t.Errorf("%d calls of many users, want %d", got, flood)
	}
}

// auditRecords returns the records of the audit log at path, with those of older files, in no order.
func auditRecords(t *testing.T, path string) (out []audit.Record) {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var r audit.Record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			out = append(out, r)
		}
	}
	return out
}

// TestEveryChangeIsAudited holds auditedCalls to the API: a call of users that is no read
// stands in it, but for uploads.
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
