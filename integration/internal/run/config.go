package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/testbed"
)

// Config is the configuration of all processes of a run. Paths are absolute.
type Config struct {
	Dir       string // folder of the run; set by Run
	Publish   string // path to which the test bed file is also written once everything is up; "" for none
	HDFSEntry string // cache entry with HDFS; "" for no HDFS
	// ClassArchive is the file that lets the JVM start faster; "" for none.
	ClassArchive string
	// Native is the cache entry with Hadoop's native library, with which DataNodes have domain
	// sockets; "" for none.
	Native    string
	DeadAfter time.Duration // a stopped DataNode counts as dead after this
	Machines  *Machines     // nil for none: HDFS then uses loopback addresses
	Host      bool          // the host itself is the machine: no namespaces; Machines must be nil
	Images    map[string]string
	Books     []string
	LogDir    string   // folder to which logs are copied after the run
	Command   []string // empty: run until told to stop
}

// Entries lists the folders of the cache that the run uses.
func (c *Config) Entries() []string {
	var paths []string
	if c.HDFSEntry != "" {
		paths = append(paths, c.HDFSEntry)
	}
	if c.ClassArchive != "" {
		paths = append(paths, filepath.Dir(c.ClassArchive))
	}
	if c.Native != "" {
		paths = append(paths, c.Native)
	}
	if m := c.Machines; m != nil {
		paths = append(paths, m.Debian, m.Boot)
		if m.Saved != "" {
			paths = append(paths, m.Saved)
		}
	}
	return paths
}

// Machines describes the virtual machines of a run.
type Machines struct {
	Count  int
	Size   build.Size
	Debian string // cache entry with kernel and root file system
	Boot   string // cache entry with the initial RAM disk
	Saved  string // cache entry with the saved RAM of a booted machine; "" boots cold
}

const (
	MaxMachines = 9 // machine k is 10.77.0.1k, its DataNode 10.77.0.2k
	network     = "10.77.0."
	hostIP      = network + "1"
	nameNodeIP  = network + "10"
	agentPort   = ":99"
)

// rackOf returns the rack of machine k: every third machine is in the second rack.
func rackOf(k int) string {
	if k%3 == 0 {
		return "/r2"
	}
	return "/r1"
}

// layout assigns names, addresses and racks to machines and daemons.
func (c *Config) layout() *testbed.File {
	pid, _ := strconv.Atoi(os.Getenv(envPID)) // 0 if absent: no namespaces
	f := &testbed.File{PID: pid, Dir: c.Dir, Control: c.Dir + "/control", Images: c.Images, Books: c.Books, Nodes: []testbed.NodeInfo{}}
	log := c.Dir + "/hdfs.log"
	if c.Host {
		f.Nodes = append(f.Nodes, c.hostNode())
	}
	if c.Machines == nil {
		if c.HDFSEntry != "" {
			var dns []testbed.DataNodeInfo
			for k := 1; k <= 3; k++ {
				dns = append(dns, testbed.DataNodeInfo{IP: loopbackDataNode(k), Rack: rackOf(k)})
			}
			f.HDFS = c.hdfsInfo("127.0.0.10", dns, log)
		}
		return f
	}
	f.Host, f.Emulated = hostIP, true
	var dns []testbed.DataNodeInfo
	for k := 1; k <= c.Machines.Count; k++ {
		ip := fmt.Sprintf("%s1%d", network, k)
		n := testbed.NodeInfo{Name: fmt.Sprintf("n%d", k), IP: ip, Agent: ip + agentPort, Rack: rackOf(k),
			Console: fmt.Sprintf("%s/n%d.console", c.Dir, k)}
		if c.HDFSEntry != "" {
			n.Storage = fmt.Sprintf("%s2%d", network, k)
			dns = append(dns, testbed.DataNodeInfo{IP: n.Storage, Rack: n.Rack})
		}
		f.Nodes = append(f.Nodes, n)
	}
	if c.HDFSEntry != "" {
		f.HDFS = c.hdfsInfo(nameNodeIP, dns, log)
	}
	return f
}

// loopbackDataNode returns the address of DataNode k without machines.
func loopbackDataNode(k int) string { return fmt.Sprintf("127.0.0.1%d", k) }

// The environment passes the stage and the configuration to the inner processes.
const (
	envStage  = "DROVER_TESTBED_STAGE"
	envConfig = "DROVER_TESTBED_CONFIG"
	envPID    = "DROVER_TESTBED_PID" // of process 1 of the namespaces, as seen from outside
)

func (c *Config) env(stage string) ([]string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("testbed: configuration: %w", err)
	}
	return append(os.Environ(), envStage+"="+stage, envConfig+"="+string(b)), nil
}

func configFromEnv() (*Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), &c); err != nil {
		return nil, fmt.Errorf("testbed: configuration from %s: %w", envConfig, err)
	}
	os.Unsetenv(envStage)
	os.Unsetenv(envConfig)
	return &c, nil
}
