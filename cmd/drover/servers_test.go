package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// A server that answers is not ok for that alone.
func TestStatesOfServers(t *testing.T) {
	const last = 5000
	for want, s := range map[string]*droverv1.Server{
		"ok": {AppliedIndex: last - 3, LastContactMs: 900},
		"empty: it has no log yet, and counts for no majority": {LastContactMs: -1},
		"has heard from no leader":                             {AppliedIndex: last, LastContactMs: -1},
		"hears from no leader":                                 {AppliedIndex: last, LastContactMs: 11_000},
		"4000 entries behind":                                  {AppliedIndex: 1000, MissingFiles: 2},
		"2 files to fetch":                                     {AppliedIndex: last, MissingFiles: 2},
	} {
		row := serverRow(s, lastApplied([]*droverv1.Server{s, {Leader: true, AppliedIndex: last}}))
		if got := row[len(row)-1]; got != want {
			t.Errorf("%v is %q, want %q", s, got, want)
		}
	}
}

// TestServersOfACluster: a second coordinator joins; list, add, transfer and remove say what they did,
// and a removed coordinator ends.
func TestServersOfACluster(t *testing.T) {
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	drover := func(args ...string) string {
		t.Helper()
		out, err := droverOutput(t, args...)
		if err != nil {
			t.Fatalf("drover %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	drover("tls", "ca", "-dir", at("ca"))
	common := func(id string) []string {
		drover("tls", "cert", "-dir", at("ca"), "-kind", "coordinator", "-host", "127.0.0.1", id)
		return []string{"coordinator", "-id", id, "-data", at("data-" + id), "-socket", at(id), "-tls-ca", at("ca/ca.pem"), "-tls-cert", at("ca/" + id + ".pem"), "-tls-key", at("ca/" + id + ".key")}
	}
	one, oneLog := startDaemon(t, append(common("c1"), "-peer-listen", "127.0.0.1:0")...)
	found := regexp.MustCompile(`server c1 at ([0-9.:]+)`).FindStringSubmatch(oneLog.String())
	if found == nil {
		t.Fatalf("no address in the log:\n%s", oneLog)
	}
	first := found[1]
	_, twoLog := startDaemon(t, append(common("c2"), "-peer-listen", "127.0.0.1:0", "-join", first)...)
	logs := func() string { return oneLog.String() + twoLog.String() }
	server := func(id string, more ...string) (string, error) {
		return droverOutput(t, append([]string{"-address", "unix://" + at(id), "operator", "server"}, more...)...)
	}
	shows := func(id, want string) {
		t.Helper()
		last := ""
		waitFor(t, "server list of "+id+" shows "+want, func() bool {
			out, _ := server(id, "list") // an error only means another try
			last = strings.Join(strings.Fields(out), " ")
			return strings.Contains(last, want)
		}, func() string { return last + "\n" + logs() })
	}
	shows("c1", "c1 "+first+" leader")
	shows("c1", "follower")
	if out, err := server("c1", "list", "-json"); err != nil || strings.Count(out, `"voter": true`) != 2 || strings.Count(out, `"leader": true`) != 1 {
		t.Errorf("%v\n%s", err, out)
	}

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"add", "c3", "nowhere"}, "nowhere"},
		{[]string{"remove", "c9"}, "c9"},
		{[]string{"transfer", "c9"}, "c9"},
	} {
		if out, err := server("c1", c.args...); exitCode(err) != exitRefused || !strings.Contains(err.Error(), c.want) {
			t.Errorf("server %v: exit code %d, %v\n%s", c.args, exitCode(err), err, out)
		}
	}
	if out, err := server("c1", "transfer", "c2"); err != nil || out != "server c2 leads\n" {
		t.Fatalf("transfer: %v\n%s\n%s", err, out, logs())
	}
	shows("c2", "c1 "+first+" follower")
	if out, err := droverOutput(t, "-address", "unix://"+at("c2"), "status"); err != nil || !strings.Contains(out, "c2") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := server("c2", "remove", "c1"); err != nil || out != "server c1 is removed\n" {
		t.Fatalf("remove: %v\n%s\n%s", err, out, logs())
	}
	ended := make(chan error, 1)
	go func() { ended <- one.Wait() }()
	select {
	case <-ended:
	case <-time.After(stepLimit):
		t.Fatalf("the removed coordinator does not end:\n%s", logs())
	}
	if out, err := server("c2", "list"); err != nil || strings.Contains(out, "c1 ") {
		t.Errorf("%v: c1 is still there:\n%s", err, out)
	}
}
