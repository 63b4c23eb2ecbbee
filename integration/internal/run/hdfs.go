package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/testbed"
)

// hdfsReadyLimit limits the start of the daemons; it takes 3 s on an idle machine.
const hdfsReadyLimit = 2 * time.Minute

// hdfsBlockBytes is the default block size, small so that small files have many blocks.
const hdfsBlockBytes = 1 << 20

// hdfs is the running JVM with the NameNode and the DataNodes. It handles one request at a time.
type hdfs struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when the JVM ends

	mu           sync.Mutex
	staleAnswers int // answers that timed out and must be skipped
}

// hdfsInfo returns the addresses of NameNode and DataNodes with their racks.
func (c *Config) hdfsInfo(nameNode string, dataNodes []testbed.DataNodeInfo, log string) *testbed.HDFSInfo {
	return &testbed.HDFSInfo{
		NameNode: nameNode + ":8020", Web: nameNode + ":9870", DataNodes: dataNodes,
		BlockBytes: hdfsBlockBytes, DeadAfterMS: c.DeadAfter.Milliseconds(), Log: log, ClassPath: build.ClassPath(c.HDFSEntry),
	}
}

// startHDFS starts the JVM in dir and returns at once; awaitReady waits until all DataNodes are
// registered. The machines' own addresses are in the NameNode's topology too.
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
	argv := build.HostCommand(c.HDFSEntry, c.ClassArchive, nil, dir, topology, hostOf(info.NameNode), heartbeat, dataNodes)
	log, err := os.Create(info.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	h := &hdfs{cmd: exec.Command(argv[0], argv[1:]...), lines: make(chan string, 16), staleAnswers: 1} // the first line is "ok ready"
	h.cmd.Dir, h.cmd.Stderr = dir, log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is for the command alone
	in, err := h.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.in = in
	if err := h.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting HDFS: %w", err)
	}
	go h.readLines(out) // ends when the JVM ends; stop waits for it through lines
	return h, nil
}

func (h *hdfs) readLines(out io.Reader) {
	defer close(h.lines)
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		h.lines <- s.Text()
	}
}

// awaitReady waits until the daemons are up.
func (h *hdfs) awaitReady(ctx context.Context, log string) error {
	ctx, cancel := context.WithTimeout(ctx, hdfsReadyLimit)
	defer cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	var said []string // by the JVM itself, such as a warning
	for {
		select {
		case line, ok := <-h.lines:
			switch {
			case !ok:
				return fmt.Errorf("HDFS ended before it was ready (%v, having said %q); the end of %s:\n%s", h.cmd.Wait(), said, log, lastLines(log, 12))
			case line == "ok ready":
				h.staleAnswers = 0
				return nil
			}
			said = append(said, line)
		case <-ctx.Done():
			return fmt.Errorf("HDFS was not ready in %v, and said %q; the end of %s:\n%s", hdfsReadyLimit, said, log, lastLines(log, 12))
		}
	}
}

// call sends a command to the JVM and returns its answer.
func (h *hdfs) call(ctx context.Context, words ...string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := io.WriteString(h.in, strings.Join(words, "\t")+"\n"); err != nil {
		return "", fmt.Errorf("HDFS has ended: %w", err)
	}
	h.staleAnswers++
	for {
		select {
		case line, ok := <-h.lines:
			if !ok {
				return "", errors.New("HDFS has ended")
			}
			if h.staleAnswers--; h.staleAnswers > 0 {
				continue // the answer to a command that timed out
			}
			answer, isOK := strings.CutPrefix(line, "ok")
			if !isOK {
				return "", errors.New(strings.TrimPrefix(line, "error "))
			}
			return strings.TrimSpace(answer), nil
		case <-ctx.Done():
			return "", fmt.Errorf("no answer from HDFS: %w", ctx.Err())
		}
	}
}

func (h *hdfs) signal(s syscall.Signal) error { return h.cmd.Process.Signal(s) }

// stop kills the JVM and waits for its end.
func (h *hdfs) stop() {
	h.cmd.Process.Kill()
	for range h.lines { // until the reader has seen the end
	}
	h.cmd.Wait()
}

// lastLines returns the end of a log for an error message.
func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

func hostOf(hostPort string) string {
	host, _, _ := strings.Cut(hostPort, ":")
	return host
}
