package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drover-run/drover/runtime"
)

func TestDoctorNamesLeftovers(t *testing.T) {
	all := []runtime.Leftover{{ID: "1.0.0.1.1", Listed: true, Parts: []string{"bundle"}}}
	if f := leftoversResult(all); f.Status != statusOK {
		t.Errorf("a container whose start may be under way: %+v", f)
	}
	for range maxLeftovers + 2 {
		all = append(all, runtime.Leftover{ID: "8.3.0.1.1", Parts: []string{"mount /run/x", "process 7 (containerd-shim-runc-v2)"}})
	}
	f := leftoversResult(all)
	if f.Status != statusDegraded || !strings.Contains(f.Detail, "8.3.0.1.1: mount /run/x, process 7") || !strings.HasSuffix(f.Detail, "and of 2 more") {
		t.Errorf("%+v", f)
	}
}

// Settings with which a daemon would not start are missing. A file that does not say by its name whose it is,
// is that of the daemon that would start with it.
func TestDoctorNamesWrongSettings(t *testing.T) {
	for _, f := range []struct{ name, text, role, status, want string }{
		{"coordinator.hcl", `scheduler = "nosuch"`, "coordinator", statusMissing, `unknown scheduler "nosuch"`},
		{"node.hcl", `listen = "127.0.0.1:0"`, "node", statusMissing, "needs -coordinator"},
		{"node.hcl", "coordinator = \"unix:///c\"\nreserve = 99", "node", statusMissing, "-reserve 99: want 1 to 90 percent"},
		{"coordinator.hcl", "listen = \"127.0.0.1:0\"\noidc_issuer = \"http://id.example\"\noidc_client_id = \"drover\"", "coordinator", statusMissing, `"http://id.example" is no https:// address`},
		{"new.hcl", `lease = "1ms"`, "coordinator", statusMissing, "-lease 1ms: want at least 1s"},
		{"new.hcl", `listen = "127.0.0.1:0"`, "coordinator", statusOK, ", of the coordinator"},
		{"new.hcl", "coordinator = \"unix:///c\"\nlisten = \"127.0.0.1:0\"", "node", statusOK, ", of the node"},
	} {
		file := filepath.Join(t.TempDir(), f.name)
		writeFile(t, file, f.text+"\n")
		role, settings, got := checkConfiguration(file)
		if role != f.role || settings == nil || got.Status != f.status || !strings.Contains(got.Detail, f.want) {
			t.Errorf("%s with %s: %s, %+v, want %s %q of the %s", f.name, f.text, role, got, f.status, f.want, f.role)
		}
		if got.Status == statusMissing && !strings.Contains(got.Fix, "drover config validate "+f.role) {
			t.Errorf("%s with %s: the cure is %q", f.name, f.text, got.Fix)
		}
	}
}

// Every finding has a cure, and every check that was left out says how to have it.
func TestDoctorHasACureForEachFinding(t *testing.T) {
	files, err := filepath.Glob("doctor*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`checkResult\{.*status(Missing|Degraded|Unchecked), .*\}`)
	seen := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, literal := range found.FindAllString(string(b), -1) {
			if seen++; strings.HasSuffix(literal, `""}`) && !strings.HasSuffix(literal, `\""}`) {
				t.Errorf("%s: no cure: %s", file, literal)
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d findings are in the source: the pattern is wrong", seen)
	}
}

// A provider whose certificate authorities cannot be read, or that does not answer, lets nobody sign in.
func TestDoctorNamesAProviderThatCannotBeAsked(t *testing.T) {
	for _, f := range []struct{ text, want string }{
		{`oidc_ca = "/no/such/file.pem"`, "/no/such/file.pem"},
		{"", "127.0.0.1:1 refuses"},
	} {
		file := filepath.Join(t.TempDir(), "coordinator.hcl")
		writeFile(t, file, "listen = \"127.0.0.1:0\"\noidc_issuer = \"https://127.0.0.1:1\"\noidc_client_id = \"drover\"\n"+f.text+"\n")
		_, settings, got := checkConfiguration(file)
		if settings == nil {
			t.Fatalf("%+v", got)
		}
		if got := checkProvider(settings); got.Status != statusMissing || !strings.Contains(got.Detail, f.want) {
			t.Errorf("with %s: %+v, want %q", f.text, got, f.want)
		}
	}
}
