package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The parser of flags cuts values at commas; a name service with two NameNodes is
// whole again, from the command line and from a file.
func TestNameServicesWithTwoNameNodes(t *testing.T) {
	c, err := parseSettings([]string{"node", "-service", "books=nn3:8020,nn4:8020", "-service", "maps=nn5:8020"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := nodeFilesConfig(c)
	want := map[string][]string{"books": {"nn3:8020", "nn4:8020"}, "maps": {"nn5:8020"}}
	if d := cmp.Diff(want, f.Services); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
	for _, bad := range []string{"books", "books=", "=nn3:8020", "books=nn3"} {
		c, err := parseSettings([]string{"node", "-service", bad})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nodeFilesConfig(c); exitCode(err) != exitUsage {
			t.Errorf("-service %s: %v", bad, err)
		}
	}
}

// The command line goes before the file.
func TestFlagsOverrideTheFile(t *testing.T) {
	file := t.TempDir() + "/node.hcl"
	writeFile(t, file, "rack = \"/file\"\nreserve = 20\nservice = { books = \"nn3:8020,nn4:8020\" }\nprobe = false\n")
	c, err := parseSettings([]string{"node", "-config", file, "-rack", "/line"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := nodeFilesConfig(c)
	if err != nil || f.Rack != "/line" || c.Int("reserve") != 20 || c.Bool("probe") || len(f.Services["books"]) != 2 {
		t.Errorf("%v: rack %s, reserve %d, probe %v, services %v", err, f.Rack, c.Int("reserve"), c.Bool("probe"), f.Services)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWrongSettingsAreFound: drover config validate finds what the daemon would refuse when it starts,
// each with the setting and what it may be, and the daemon refuses it in the same words.
func TestWrongSettingsAreFound(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, c := range []struct{ role, line, want string }{
		{"coordinator", `scheduler = "none"`, `unknown scheduler "none"`},
		{"coordinator", `set = ["preempt"]`, `"preempt": want key=value`},
		{"coordinator", `set = ["preempt=maybe"]`, `parameter "preempt" is "maybe"`},
		{"coordinator", `operator = ["alice"]`, `-operator "alice": want the name of a user's certificate, user/alice`},
		{"coordinator", `operator = ["node/n1"]`, `-operator "node/n1"`},
		{"coordinator", `frozen_share = 0`, "-frozen-share 0: want more than 0 and at most 1"},
		{"coordinator", `frozen_share = 1.5`, "-frozen-share 1.5: want more than 0"},
		{"coordinator", `lease = "10ms"`, "-lease 10ms: want at least 1s"},
		{"coordinator", `lease = "soon"`, "lease"},
		{"coordinator", `log_level = "loud"`, "want error, warn, info or debug"},
		{"coordinator", `blob_quota = "much"`, `-blob-quota: size "much": want a number with a unit`},
		{"coordinator", `blob_quota = "0"`, `-blob-quota "0": want a size such as 20GiB`},
		{"coordinator", `blob_quota = ""`, `-blob-quota: size ""`},
		{"coordinator", `history_size = ""`, `-history-size: size ""`},
		{"coordinator", `history_size = "5 parsecs"`, `-history-size: size "5 parsecs"`},
		{"coordinator", `disk_reserve = "some"`, `-disk-reserve: size "some"`},
		{"coordinator", `listen = "7100"`, `-listen "7100": want host:port`},
		{"coordinator", `listen = ":99999"`, `-listen ":99999": want host:port, with a port from 0 to 65535`},
		{"coordinator", `peer_address = "m1"`, `-peer-address "m1": want host:port`},
		{"coordinator", `servers = ["c1"]`, `-servers "c1": want ID=HOST:PORT, such as c1=10.0.0.1:7102`},
		{"coordinator", `servers = ["c1=10.0.0.1"]`, `-servers "10.0.0.1": want host:port`},
		{"coordinator", `servers = ["c1=10.0.0.1:7102"]`, "set -peer-listen too"},
		{"coordinator", `bootstrap = true`, "set -peer-listen too"},
		{"coordinator", "peer_listen = \"10.0.0.1:7102\"\nservers = [\"c1=10.0.0.1:7102\", \"c1=10.0.0.2:7102\"]", `two servers are called "c1" in -servers`},
		{"coordinator", "peer_listen = \"10.0.0.1:7102\"\nservers = [\"c1=10.0.0.3:7102\"]", "-servers has c1=10.0.0.3:7102, and this server's own -peer-address is 10.0.0.1:7102"},
		{"coordinator", "peer_listen = \":7102\"\npeer_address = \"m1:7102\"\nservers = [\"c1=m2:7102\"]", "-servers has c1=m2:7102, and this server's own -peer-address is m1:7102"},
		{"coordinator", "id = \"c3\"\npeer_listen = \"m1:7102\"\nservers = [\"c1=m1:7102\"]", `server "c3" is not in -servers: set -id to its name there`},
		{"coordinator", "peer_listen = \":7102\"", `the other coordinators cannot reach ":7102": set -peer-address`},
		{"coordinator", "peer_listen = \"0.0.0.0:7102\"", `the other coordinators cannot reach "0.0.0.0:7102": set -peer-address`},
		{"coordinator", "peer_listen = \"10.0.0.1:7102\"\nbootstrap = true", "-bootstrap begins a cluster of the servers in -servers, which is empty"},
		{"coordinator", "peer_listen = \"10.0.0.1:7102\"\nservers = [\"c1=10.0.0.1:7102\"]", "mutual TLS needs"}, // the list is right
		{"coordinator", `join = ["m1"]`, `-join "m1": want host:port`},
		{"coordinator", `oidc_client_id = "drover"`, "-oidc-client-id needs -oidc-issuer"},
		{"coordinator", `oidc_issuer = "https://id.example"`, "-oidc-issuer needs -listen"},
		{"coordinator", `listen = "127.0.0.1:0"`, "mutual TLS needs"},
		{"coordinator", `lese = "15s"`, `no setting "lese" for the coordinator; did you mean "lease"?`},
		{"node", `rack = "/r1"`, "the node daemon needs -coordinator https://host:port (verbs: list, status, drain, maintain, clean)"},
		{"node", `coordinator = "m1:7100"`, `-coordinator "m1:7100": want https://host:port or unix:///path`},
		{"node", `coordinator = "https://m1:7100"`, "mutual TLS needs"},
		{"node", "coordinator = \"unix:///s\"\nreserve = 0", "-reserve 0: want 1 to 90 percent"},
		{"node", "coordinator = \"unix:///s\"\nreserve = 91", "-reserve 91: want 1 to 90 percent"},
		{"node", "coordinator = \"unix:///s\"\nkeep_logs_size = \"lots\"", `-keep-logs-size: size "lots"`},
		{"node", "coordinator = \"unix:///s\"\nkeep_logs_size = \"\"", `-keep-logs-size: size ""`},
		{"node", "coordinator = \"unix:///s\"\noci_runtime = \"crun\"", `-oci-runtime "crun": want auto or runc`},
		{"node", "coordinator = \"unix:///s\"\nlisten = \"7101\"", `-listen "7101": want host:port`},
		{"node", "coordinator = \"unix:///s\"\nnamenode = \"nn1\"", `-namenode "nn1": want host:port`},
		{"node", "coordinator = \"unix:///s\"\nallow_namenode = [\"*\", \"nn1\"]", `-allow-namenode "nn1": want host:port`},
		{"node", "coordinator = \"unix:///s\"\nlog_level = \"loud\"", "want error, warn, info or debug"},
		{"node", "coordinator = \"unix:///s\"\nreserve = \"ten\"", "reserve"},
		{"node", "coordinator = \"unix:///s\"\nlease = \"15s\"", `no setting "lease" for the node; it is one of drover coordinator`},
		{"node", "coordinator = \"unix:///s\"\nrack = ", "n.hcl"},
	} {
		writeFile(t, "n.hcl", c.line+"\n")
		_, _, err := runNowhere(t, "config", "validate", c.role, "n.hcl")
		if code := exitCode(err); (code != exitUsage && code != exitRefused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s with %s: exit code %d, %v; want …%s…, in one line", c.role, c.line, code, err, c.want)
			continue
		}
		data := filepath.Join(dir, "data")
		_, _, started := runNowhere(t, c.role, "-config", "n.hcl", "-data", data)
		if started == nil || started.Error() != err.Error() {
			t.Errorf("drover %s with %s says %v; drover config validate said %v", c.role, c.line, started, err)
		}
		if _, err := os.Stat(data); !os.IsNotExist(err) {
			t.Errorf("%s with %s made its folder: %v", c.role, c.line, err)
		}
	}
}

// TestANodeSaysWhereOthersReachIt: what a node is told, not what its socket is bound to, is its address for others.
func TestANodeSaysWhereOthersReachIt(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1), Port: 7103}
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"-listen", "10.0.0.2:7103"}, "10.0.0.2:7103"},
		{[]string{"-listen", "m2:0"}, "m2:7103"},
		{[]string{"-listen", ":7103", "-node-address", "m2"}, "m2:7103"},
		{[]string{"-listen", "0.0.0.0:7103", "-node-address", "fd00::2"}, "[fd00::2]:7103"},
		{[]string{"-listen", "[::]:7103", "-node-address", "m2.example:17103"}, "m2.example:17103"},
		{[]string{"-listen", ":7103"}, ""},
		{[]string{"-listen", "0.0.0.0:7103"}, ""},
		{[]string{"-listen", "m2:7103", "-node-address", "::"}, ""},
		{[]string{"-listen", "m2:7103", "-node-address", "m2:port"}, ""},
	} {
		settings, err := parseSettings(append([]string{"node", "-coordinator", "unix:///c"}, c.flags...))
		if err != nil {
			t.Fatal(err)
		}
		got, err := advertisedAddress(settings, bound)
		if c.want == "" {
			if exitCode(err) != exitUsage || exitCode(checkNodeSettings(settings)) != exitUsage {
				t.Errorf("%q: %q %v", c.flags, got, err)
			}
			continue
		}
		if err := errors.Join(err, checkNodeSettings(settings)); err != nil || got != c.want {
			t.Errorf("%q: %q %v, want %q", c.flags, got, err, c.want)
		}
	}
}
