package testbed

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// EnvFile is the environment variable with the path of the test bed file, set inside a running test
// bed.
const EnvFile = "DROVER_TESTBED"

// fileVersion is the version of the test bed file that this package reads and writes.
const fileVersion = 1

// File describes a running test bed. It is written as JSON before the test bed's command starts.
type File struct {
	Version  int               `json:"version"`
	Dir      string            `json:"dir"`      // folder with logs and consoles, removed after the run
	Control  string            `json:"control"`  // unix socket of the control server
	PID      int               `json:"pid"`      // pid of process 1 of the test bed's namespaces, seen from outside; 0 without namespaces
	Host     string            `json:"host"`     // address of the host side for the machines; "" without machines
	Emulated bool              `json:"emulated"` // the machines' CPU is emulated: compare times within one test bed only
	Nodes    []NodeInfo        `json:"nodes"`
	HDFS     *HDFSInfo         `json:"hdfs,omitempty"`
	Images   map[string]string `json:"images,omitempty"` // busybox, python: OCI archives on the host side
	Books    []string          `json:"books,omitempty"`  // text files on the host side (flag -books)
}

// NodeInfo is one machine.
type NodeInfo struct {
	Name    string `json:"name"` // n1, n2, ...; also the host name
	IP      string `json:"ip"`
	Agent   string `json:"agent"`   // host:port or unix:path of the control agent
	Storage string `json:"storage"` // address of the machine's local DataNode; "" without HDFS
	Rack    string `json:"rack"`    // /r1 or /r2
	Console string `json:"console"` // file with the output of kernel and init; "" if the machine is the host
	IsHost  bool   `json:"is_host"` // the machine is the host: it cannot be killed, paused or partitioned
}

// HDFSInfo is the running Apache HDFS.
type HDFSInfo struct {
	NameNode    string         `json:"namenode"`         // host:port of the RPC
	Web         string         `json:"web"`              // host:port of WebHDFS and the NameNode's pages
	DataNodes   []DataNodeInfo `json:"datanodes"`        // DataNode k is element k-1
	BlockBytes  int            `json:"block_bytes"`      // default block size
	DeadAfterMS int64          `json:"dead_after_ms"`    // after this time the blocks of a stopped DataNode lose their location
	Log         string         `json:"log"`              // log file of the daemons
	ClassPath   string         `json:"class_path"`       // Java's, of the daemons' jars, which hold HDFS's own clients too
	Native      string         `json:"native,omitempty"` // folder of Hadoop's native library; "" for none
}

// DataNodeInfo is one DataNode.
type DataNodeInfo struct {
	IP     string `json:"ip"` // data port 9866
	Rack   string `json:"rack"`
	Folder string `json:"folder"`           // of its data
	Socket string `json:"socket,omitempty"` // dfs.domain.socket.path; "" for none
}

// readFile reads a test bed file.
func readFile(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("test bed file: %w", err)
	}
	var f File
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("test bed file %s: %w", path, err)
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("test bed file %s has version %d, this program reads %d: run both from the same commit", path, f.Version, fileVersion)
	}
	return &f, nil
}

// Write writes the test bed file atomically.
func (f *File) Write(path string) error {
	f.Version = fileVersion
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("test bed file: %w", err)
	}
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".part")
	if err := os.WriteFile(part, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("test bed file: %w", err)
	}
	return os.Rename(part, path)
}
