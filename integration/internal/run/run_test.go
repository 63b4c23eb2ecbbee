package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/testbed"
)

func TestLayout(t *testing.T) {
	type node struct{ Name, IP, Storage, Rack string }
	tests := map[string]struct {
		config    Config
		nodes     []node
		nameNode  string
		dataNodes []testbed.DataNodeInfo
	}{
		"HDFS alone is on loopback": {
			config:    Config{HDFSEntry: "/e"},
			nameNode:  "127.0.0.10:8020",
			dataNodes: []testbed.DataNodeInfo{{IP: "127.0.0.11", Rack: "/r1"}, {IP: "127.0.0.12", Rack: "/r1"}, {IP: "127.0.0.13", Rack: "/r2"}},
		},
		"machines alone have no storage": {
			config: Config{Machines: &Machines{Count: 2}},
			nodes:  []node{{"n1", "10.77.0.11", "", "/r1"}, {"n2", "10.77.0.12", "", "/r1"}},
		},
		"each machine has a DataNode in its rack": {
			config:   Config{Machines: &Machines{Count: 3}, HDFSEntry: "/e"},
			nodes:    []node{{"n1", "10.77.0.11", "10.77.0.21", "/r1"}, {"n2", "10.77.0.12", "10.77.0.22", "/r1"}, {"n3", "10.77.0.13", "10.77.0.23", "/r2"}},
			nameNode: "10.77.0.10:8020",
			dataNodes: []testbed.DataNodeInfo{{IP: "10.77.0.21", Rack: "/r1"}, {IP: "10.77.0.22", Rack: "/r1"},
				{IP: "10.77.0.23", Rack: "/r2"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := tt.config.layout()
			var nodes []node
			for _, n := range f.Nodes {
				nodes = append(nodes, node{n.Name, n.IP, n.Storage, n.Rack})
			}
			if d := cmp.Diff(tt.nodes, nodes); d != "" {
				t.Error(d)
			}
			var nameNode string
			var dataNodes []testbed.DataNodeInfo
			if f.HDFS != nil {
				nameNode = f.HDFS.NameNode
				for i, d := range f.HDFS.DataNodes {
					if want := fmt.Sprintf("hdfs/datanode%d", i+1); d.Folder != want || d.Socket != "" {
						t.Errorf("DataNode %d: folder %q, want %q; socket %q without a native library", i+1, d.Folder, want, d.Socket)
					}
					dataNodes = append(dataNodes, testbed.DataNodeInfo{IP: d.IP, Rack: d.Rack})
				}
			}
			if d := cmp.Diff(tt.nameNode, nameNode) + cmp.Diff(tt.dataNodes, dataNodes); d != "" {
				t.Error(d)
			}
		})
	}
}

// A DataNode accepts a socket only where root alone can put one.
func TestFolderOfSockets(t *testing.T) {
	for dir, want := range map[string]bool{
		"/nonexistent-drover":           true,
		filepath.Join(t.TempDir(), "x"): false, // below /tmp
		"/absent/x":                     false,
		"/" + strings.Repeat("x", 105):  false,
	} {
		if got := canHaveSockets(dir); got != want {
			t.Errorf("%s: %v, want %v", dir, got, want)
		}
	}
}

func TestAddressesAreDistinct(t *testing.T) {
	f := (&Config{Machines: &Machines{Count: MaxMachines}, HDFSEntry: "/e"}).layout()
	seen := map[string]bool{f.Host: true, hostOf(f.HDFS.NameNode): true}
	for _, n := range f.Nodes {
		for _, ip := range []string{n.IP, n.Storage} {
			if seen[ip] {
				t.Errorf("%s twice", ip)
			}
			seen[ip] = true
		}
	}
}

func TestTheConfigurationReachesTheInnerProcesses(t *testing.T) {
	c := &Config{Dir: "/d", HDFSEntry: "/h", DeadAfter: time.Second, Machines: &Machines{Count: 2, Saved: "/s"},
		Images: map[string]string{"a": "b"}, Command: []string{"x", "y z"}}
	env, err := c.env("inner")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range env {
		if name, value, _ := strings.Cut(e, "="); name == envConfig || name == envStage {
			t.Setenv(name, value)
		}
	}
	got, err := configFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, got); d != "" {
		t.Error(d)
	}
	if os.Getenv(envConfig) != "" || os.Getenv(envStage) != "" {
		t.Error("the command would inherit the test bed's own variables")
	}
}

func TestProcessState(t *testing.T) {
	tests := map[string]struct {
		stat string
		want byte
	}{
		"running":                  {"12 (qemu) R 1 2", 'R'},
		"stopped, brackets inside": {"12 (a) S) T 1 2", 'T'},
		"cut":                      {"12 (qemu)", 0},
		"empty":                    {"", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseState([]byte(tt.stat))
			if got != tt.want || (err != nil) != (tt.want == 0) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	if got, err := processState(os.Getpid()); err != nil || got != 'R' && got != 'S' {
		t.Errorf("own state %q, %v", got, err)
	}
}

func TestOnlyFoldersOfKilledRunsAreSwept(t *testing.T) {
	c := cache.Dir(t.TempDir())
	living, lock, err := makeRunDir(c)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	killed, killedLock, err := makeRunDir(c)
	if err != nil {
		t.Fatal(err)
	}
	killedLock.Close()
	third, thirdLock, err := makeRunDir(c)
	if err != nil {
		t.Fatal(err)
	}
	defer thirdLock.Close()
	left, err := filepath.Glob(c.Path("run", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 2 {
		t.Errorf("%v are left, want %s and %s but not %s", left, living, third, killed)
	}
}

func TestTooLongFolderForASocketIsRefused(t *testing.T) {
	c := cache.Dir(filepath.Join(t.TempDir(), strings.Repeat("x", 120)))
	if err := os.MkdirAll(string(c), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := makeRunDir(c); err == nil || !strings.Contains(err.Error(), cache.EnvDir) {
		t.Errorf("error %v does not name the cure", err)
	}
}

func TestControllers(t *testing.T) {
	if !hasControllers("cpuset cpu io memory hugetlb pids\n") || hasControllers("cpuset io memory pids") || hasControllers("") {
		t.Error("wrong")
	}
}
