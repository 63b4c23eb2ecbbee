// Package unixhttp lets an HTTP client reach servers on unix sockets in the same way as servers on
// the network: an address is "host:port" or "unix:/path". It is not a server and does not check
// permissions; the mode of a socket does.
package unixhttp

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// Scheme begins the address of a server on a unix socket.
const Scheme = "unix:"

// MaxPath is the longest path of a socket in bytes, from the kernel's
// sockaddr_un.
const MaxPath = 107

// hostSuffix marks a host of a URL that is a path in hexadecimal. ".invalid" is reserved (RFC
// 2606), so no machine has such a name.
const hostSuffix = ".socket.invalid"

// Host returns the host that represents an address in a URL.
func Host(address string) string {
	path, ok := strings.CutPrefix(address, Scheme)
	if !ok {
		return address
	}
	return hex.EncodeToString([]byte(path)) + hostSuffix
}

// DialContext returns a dial function for http.Transport. It connects to the socket of a host that
// Host returned, and to all other hosts over the network.
func DialContext(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address
		}
		if name, ok := strings.CutSuffix(host, hostSuffix); ok {
			path, err := hex.DecodeString(name)
			if err != nil {
				return nil, fmt.Errorf("host %q names no socket: %w", host, err)
			}
			return d.DialContext(ctx, "unix", string(path))
		}
		return d.DialContext(ctx, network, address)
	}
}

// Listen makes a socket with this mode. It replaces the socket of an ended process; if a process
// still listens there, it returns fault.Conflict. Nobody can connect before the mode is set.
// Closing the listener removes the socket.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	if len(path) > MaxPath {
		return nil, fault.New(fault.Invalid, "socket %s: a path of %d bytes, the kernel allows %d", path, len(path), MaxPath)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close() // opened only to find a listener
		return nil, fault.New(fault.Conflict, "another process listens on %s: stop it first", path)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "s") // 0700
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer os.RemoveAll(dir)
	// The temporary path may be too long even if path is not; the descriptor of its folder makes it
	// short.
	at, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer at.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/s", at.Fd()))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err = os.Chmod(filepath.Join(dir, "s"), mode); err == nil {
		err = os.Rename(filepath.Join(dir, "s"), path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close())
	}
	return &listener{l, path}, nil
}

// listener removes its socket when it is closed.
type listener struct {
	net.Listener
	path string
}

// Close closes and removes the socket.
func (l *listener) Close() error {
	err := l.Listener.Close()
	if e := os.Remove(l.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}
