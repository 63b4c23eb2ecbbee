package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/internal/agent"
	"github.com/drover-run/drover/integration/testbed"
)

// containerdSocket is where containerd answers on every distribution.
const containerdSocket = "/run/containerd/containerd.sock"

// CheckHost returns an error with everything that the host lacks to serve as a machine.
func CheckHost(ctx context.Context) error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		missing = append(missing, "unified cgroup v2 at /sys/fs/cgroup (boot with systemd.unified_cgroup_hierarchy=1)")
	} else if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err != nil || !hasControllers(string(b)) {
		missing = append(missing, "the cgroup controllers cpu, memory, io and pids")
	}
	c, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "unix", containerdSocket)
	if err != nil {
		missing = append(missing, "containerd, answering at "+containerdSocket)
	} else {
		c.Close()
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("testbed: this host cannot serve as a machine, it lacks: %s", strings.Join(missing, "; "))
}

func hasControllers(list string) bool {
	have := strings.Fields(list)
	for _, want := range []string{"cpu", "memory", "io", "pids"} {
		found := false
		for _, h := range have {
			found = found || h == want
		}
		if !found {
			return false
		}
	}
	return true
}

// hostNode describes the host as the only machine of a test bed.
func (c *Config) hostNode() testbed.NodeInfo {
	name, err := os.Hostname()
	if err != nil {
		name = "host"
	}
	n := testbed.NodeInfo{Name: name, IP: "127.0.0.1", Agent: "unix:" + c.Dir + "/agent", Rack: rackOf(1), IsHost: true}
	if c.HDFSEntry != "" {
		n.Storage = loopbackDataNode(1)
	}
	return n
}

// serveHost serves the agent's protocol on the host until the returned function is called.
func (b *inner) serveHost(ctx context.Context) (stop func(), err error) {
	path := strings.TrimPrefix(b.file.Nodes[0].Agent, "unix:")
	l, err := net.Listen("unix", path) // in a folder that only its owner can access
	if err != nil {
		return nil, fmt.Errorf("testbed: agent: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	server := new(agent.Server)
	go func() { done <- server.Serve(ctx, l) }()
	return func() {
		cancel()
		<-done
		server.KillStarted()
	}, nil
}

var errIsHost = errors.New("the machine is this host: it cannot be killed, paused or partitioned")
