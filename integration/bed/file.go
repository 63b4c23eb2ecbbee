package bed

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// EnvFile is the environment variable that holds the path of the bed file inside a running bed.
const EnvFile = "DROVER_BED"

// FileVersion is the version of the bed file that this package writes and reads.
const FileVersion = 1

// File says where everything in a running bed is. It is written as JSON before the bed's command starts.
type File struct {
	Version  int               `json:"version"`
	Dir      string            `json:"dir"`      // folder of this run: logs, consoles; gone after the run
	Control  string            `json:"control"`  // unix socket of the control server
	PID      int               `json:"pid"`      // process 1 of the bed's namespaces as seen from outside; 0 without namespaces
	Host     string            `json:"host"`     // address under which machines reach the host side; "" without machines
	Emulated bool              `json:"emulated"` // machines run on an emulated CPU: compare times within one bed only
	Nodes    []NodeInfo        `json:"nodes"`
	HDFS     *HDFSInfo         `json:"hdfs,omitempty"`
	Images   map[string]string `json:"images,omitempty"` // busybox, python: OCI archives on the host side
	Books    []string          `json:"books,omitempty"`  // files of real text on the host side (flag -books)
}

// NodeInfo is one machine.
type NodeInfo struct {
	Name    string `json:"name"`    // n1, n2, ...; also its host name
	IP      string `json:"ip"`      // its address
	Agent   string `json:"agent"`   // host:port or unix:path of the control agent
	Storage string `json:"storage"` // address of the DataNode that counts as local to it; "" without HDFS
	Rack    string `json:"rack"`    // /r1 or /r2
	Console string `json:"console"` // file with what its kernel and init printed; "" when the machine is the host
	IsHost  bool   `json:"is_host"` // the machine is the host itself: it cannot be killed, paused or cut off
}

// HDFSInfo is the running Apache HDFS.
type HDFSInfo struct {
	NameNode    string         `json:"namenode"`      // host:port of its RPC
	Web         string         `json:"web"`           // host:port of WebHDFS and the NameNode's pages
	DataNodes   []DataNodeInfo `json:"datanodes"`     // DataNode k is element k-1
	BlockBytes  int            `json:"block_bytes"`   // default block size
	DeadAfterMS int64          `json:"dead_after_ms"` // a stopped DataNode's blocks lose their location after this
	Log         string         `json:"log"`           // file with what the daemons logged
}

// DataNodeInfo is one DataNode.
type DataNodeInfo struct {
	IP   string `json:"ip"` // data port 9866
	Rack string `json:"rack"`
}

// ReadFile reads a bed file.
func ReadFile(path string) (*File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bed file: %w", err)
	}
	var f File
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("bed file %s: %w", path, err)
	}
	if f.Version != FileVersion {
		return nil, fmt.Errorf("bed file %s has version %d, this program reads %d: run both from the same commit", path, f.Version, FileVersion)
	}
	return &f, nil
}

// Write writes the bed file whole or not at all.
func (f *File) Write(path string) error {
	f.Version = FileVersion
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("bed file: %w", err)
	}
	part := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".part")
	if err := os.WriteFile(part, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("bed file: %w", err)
	}
	return os.Rename(part, path)
}
