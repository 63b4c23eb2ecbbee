package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/control"
	"github.com/drover-run/drover/integration/testbed"
)

// hdfsReadyLimit limits the start of the daemons; it takes 7 to 10 s on a busy machine.
const hdfsReadyLimit = 2 * time.Minute

// hdfsBlockBytes is the default block size, small so that small files have many blocks.
const hdfsBlockBytes = 1 << 20

// hdfs is the running Apache HDFS. Each daemon has a JVM of its own, so that it can be killed alone.
type hdfs struct {
	nameNode  *daemon
	dataNodes []*daemon // DataNode k is element k-1
}

// hdfsDir returns the folder of HDFS.
func (c *Config) hdfsDir() string { return filepath.Join(c.Dir, "hdfs") }

// hdfsInfo returns the addresses of NameNode and DataNodes with their racks, folders and sockets.
func (c *Config) hdfsInfo(nameNode string, dataNodes []testbed.DataNodeInfo, log string) *testbed.HDFSInfo {
	sockets := c.Native != "" && canHaveSockets(c.hdfsDir())
	for i := range dataNodes {
		dataNodes[i].Folder = filepath.Join(c.hdfsDir(), "datanode"+strconv.Itoa(i+1))
		if sockets {
			dataNodes[i].Socket = build.DomainSocket(c.hdfsDir(), i+1)
		}
	}
	return &testbed.HDFSInfo{
		Native:   c.Native,
		NameNode: nameNode + ":8020", Web: nameNode + ":9870", DataNodes: dataNodes,
		BlockBytes: hdfsBlockBytes, DeadAfterMS: c.DeadAfter.Milliseconds(), Log: log, ClassPath: build.ClassPath(c.HDFSEntry),
	}
}

// canHaveSockets reports whether a DataNode accepts domain sockets in a folder that is to be made:
// only if root alone can write to the folders above. That is never so in a user namespace, to which
// the machine's root is nobody.
func canHaveSockets(dir string) bool {
	if len(build.DomainSocket(dir, 9)) > longestSocket {
		return false
	}
	for dir != "/" {
		dir = filepath.Dir(dir)
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
			return false
		}
	}
	return true
}

// startHDFS starts the NameNode in dir and returns at once; awaitReady starts the DataNodes and
// waits until all are registered. The machines' own addresses are in the NameNode's topology too.
func startHDFS(c *Config, dir string, info *testbed.HDFSInfo, nodes []testbed.NodeInfo) (*hdfs, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var table strings.Builder
	for _, d := range info.DataNodes {
		fmt.Fprintf(&table, "%s %s\n", d.IP, d.Rack)
	}
	for _, n := range nodes {
		fmt.Fprintf(&table, "%s %s\n", n.IP, n.Rack)
	}
	topology := filepath.Join(dir, "topology.table")
	if err := os.WriteFile(topology, []byte(table.String()), 0o644); err != nil {
		return nil, err
	}
	var dataNodes []string
	for _, d := range info.DataNodes {
		dataNodes = append(dataNodes, d.IP)
	}
	// A DataNode is dead after 10 heartbeats and 2 rechecks of 2 heartbeats each, so a heartbeat is
	// a fourteenth of the total.
	heartbeat := time.Duration(info.DeadAfterMS) * time.Millisecond / 14
	newDaemon := func(name string, options ...string) *daemon {
		options = append(options, build.OnlyDaemon(name))
		return &daemon{dir: dir, log: info.Log,
			argv: build.HostCommand(c.HDFSEntry, c.ClassArchive, options, dir, topology, hostOf(info.NameNode), heartbeat, dataNodes)}
	}
	h := &hdfs{nameNode: newDaemon("namenode")}
	for k := range dataNodes {
		var sockets []string
		if info.DataNodes[k].Socket != "" {
			sockets = build.DomainSockets(c.Native, dir)
		}
		h.dataNodes = append(h.dataNodes, newDaemon(strconv.Itoa(k+1), sockets...))
	}
	return h, h.nameNode.launch()
}

// awaitReady waits until all daemons are up. It starts the DataNodes after the NameNode, because a
// DataNode that finds the NameNode half started retries only after seconds.
func (h *hdfs) awaitReady(ctx context.Context) error {
	if err := h.nameNode.awaitReady(ctx); err != nil {
		return err
	}
	for _, d := range h.dataNodes {
		if err := d.launch(); err != nil {
			return err
		}
	}
	for _, d := range h.dataNodes {
		if err := d.awaitReady(ctx); err != nil {
			return err
		}
	}
	want := fmt.Sprintf("%d normal", len(h.dataNodes))
	return testbed.WaitFor(ctx, hdfsReadyLimit, "all DataNodes to register", func(ctx context.Context) error {
		live, err := h.live(ctx)
		if err == nil && live != want {
			err = fmt.Errorf("alive: %s", live)
		}
		return err
	})
}

// handle handles one request to the daemons.
func (h *hdfs) handle(ctx context.Context, r control.Request) (string, error) {
	switch r.Op {
	case control.LiveDataNodes:
		return h.live(ctx)
	case control.LoadFile:
		return h.load(ctx, r)
	case control.PauseHDFS:
		return "", h.pause(ctx)
	case control.ContinueHDFS:
		return "", h.signal(syscall.SIGCONT)
	case control.StopNameNode, control.StartNameNode, control.KillNameNode:
		return h.nameNode.handle(ctx, r.Op)
	case control.StopDataNode, control.StartDataNode, control.KillDataNode:
		if r.N < 1 || r.N > len(h.dataNodes) {
			return "", fmt.Errorf("no DataNode %d: they are numbered from 1 to %d", r.N, len(h.dataNodes))
		}
		return h.dataNodes[r.N-1].handle(ctx, r.Op, strconv.Itoa(r.N))
	default:
		return "", fmt.Errorf("operation %v is not supported by HDFS", r.Op)
	}
}

// live returns the NameNode's number of live DataNodes and its mode: "normal", "safemode" or "down".
func (h *hdfs) live(ctx context.Context) (string, error) {
	answer, err := h.nameNode.call(ctx, "live")
	if errors.Is(err, errKilled) {
		return "0 down", nil
	}
	return answer, err
}

// load writes a file by a client in the NameNode's JVM.
func (h *hdfs) load(ctx context.Context, r control.Request) (string, error) {
	if len(r.Places) == 0 || r.BlockBytes <= 0 {
		return "", errors.New("load: a block size and at least one DataNode are required")
	}
	if strings.ContainsAny(r.Local+r.Remote, "\t\n") {
		return "", errors.New("load: names must not contain tabs or newlines")
	}
	places := make([]string, len(r.Places))
	for i, k := range r.Places {
		places[i] = strconv.Itoa(k)
	}
	return h.nameNode.call(ctx, "load", r.Local, r.Remote, strconv.Itoa(r.BlockBytes), strings.Join(places, ","))
}

// pause stops the JVMs with SIGSTOP and waits until they have stopped.
func (h *hdfs) pause(ctx context.Context) error {
	if err := h.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for _, j := range h.running() {
		if err := awaitStopped(ctx, j.cmd.Process.Pid); err != nil {
			return err
		}
	}
	return nil
}

func (h *hdfs) signal(s syscall.Signal) error {
	for _, j := range h.running() {
		if err := j.cmd.Process.Signal(s); err != nil {
			return err
		}
	}
	return nil
}

// running returns the JVMs of all daemons that were not killed.
func (h *hdfs) running() (all []*jvm) {
	for _, d := range append([]*daemon{h.nameNode}, h.dataNodes...) {
		if j := d.running(); j != nil {
			all = append(all, j)
		}
	}
	return all
}

// stop kills all daemons and waits for their end.
func (h *hdfs) stop() {
	for _, j := range h.running() {
		j.stop()
	}
}

func hostOf(hostPort string) string {
	host, _, _ := strings.Cut(hostPort, ":")
	return host
}
