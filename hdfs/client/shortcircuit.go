package client

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
)

// shortCircuit decides which blocks are read from local files instead of over TCP. A replica must be
// on this machine and the DataNode's domain socket must be one that nobody else can have put there.
type shortCircuit struct {
	path   string                            // dfs.domain.socket.path, which may contain "_PORT"; "": off
	verify func(path string) (string, error) // verifySocket; replaced in tests
	failed func(error)                       // called once

	mu          sync.Mutex
	warned      bool
	pausedUntil time.Time
}

const (
	// socketPause is how long a socket that cannot be used is left alone.
	socketPause = time.Minute
	// maxSocketPath is the longest path of a Unix socket in bytes.
	maxSocketPath = 107
)

// checkSocketOption validates Options.DomainSocket.
func checkSocketOption(path string) error {
	if path != "" && (!filepath.IsAbs(path) || len(path) > maxSocketPath) {
		return fmt.Errorf("%w: domain socket %q: want an absolute path of at most %d bytes", hdfs.ErrInvalid, path, maxSocketPath)
	}
	return nil
}

// open returns a reader of the local files of a replica; nil if the replica is to be read over TCP.
func (s *shortCircuit) open(ctx context.Context, replica hdfs.Replica, request datanode.ReadRequest, o datanode.Options) (*datanode.LocalReader, error) {
	if s.path == "" || s.isPaused() {
		return nil, nil
	}
	path, err := s.verify(strings.ReplaceAll(s.path, "_PORT", strconv.Itoa(replica.Port)))
	if err != nil {
		return nil, &datanode.ShortCircuitError{Err: err, Socket: true}
	}
	return datanode.OpenLocalReader(ctx, path, request, o)
}

func (s *shortCircuit) isPaused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.pausedUntil)
}

// fail records why a block is read over TCP.
func (s *shortCircuit) fail(err *datanode.ShortCircuitError) {
	if err.Expected {
		return
	}
	s.mu.Lock()
	warn := !s.warned
	s.warned = true
	if err.Socket {
		s.pausedUntil = time.Now().Add(socketPause)
	}
	s.mu.Unlock()
	if warn {
		s.failed(err)
	}
}

// verifySocket returns the path of a socket without symbolic links, or an error if anybody but
// root, this user and the owner of the socket could replace it. HDFS's DataNode refuses such a path
// too.
func verifySocket(path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	socket, err := os.Lstat(resolved)
	if err != nil {
		return "", err
	}
	if socket.Mode().Type() != fs.ModeSocket {
		return "", fmt.Errorf("%w: %s is not a socket", hdfs.ErrInvalid, resolved)
	}
	owner := socket.Sys().(*syscall.Stat_t).Uid
	for dir := filepath.Dir(resolved); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", err
		}
		st := info.Sys().(*syscall.Stat_t)
		if why := insecureFolder(st.Mode, st.Uid, st.Gid, owner, uint32(os.Geteuid())); why != "" {
			return "", fmt.Errorf("%w: domain socket %s: folder %s %s (mode %03o)", hdfs.ErrPermission, resolved, dir, why, st.Mode&0o777)
		}
		if dir == "/" {
			return resolved, nil
		}
	}
}

// insecureFolder says who but root, this user and the owner of a socket can change the folder; "":
// nobody. The sticky bit does not help, as it does not with HDFS: the socket of a stopped DataNode
// can be replaced once it is removed.
func insecureFolder(mode, uid, gid, socketOwner, self uint32) string {
	switch {
	case mode&0o002 != 0:
		return "is writable by everybody"
	case mode&0o020 != 0 && gid != 0:
		return fmt.Sprintf("is writable by group %d", gid)
	case uid != 0 && uid != self && uid != socketOwner:
		return fmt.Sprintf("belongs to user %d", uid)
	}
	return ""
}
