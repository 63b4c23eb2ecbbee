package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/node/shuffle"
)

// Names of the sockets of a node, in its data folder.
const (
	nameSocket        = "node.sock"    // everything, of a node without TLS; only the daemon's user may connect
	nameShuffleSocket = "shuffle.sock" // map outputs alone, for helpers that run as tenants
)

// endpoint is a listener and what it serves.
type endpoint struct {
	net.Listener
	handler http.Handler
}

// listen opens the node's HTTP servers and fills in the node's address. With a
// certificate there is one server, on the given listener, to which callers prove
// who they are. Without a certificate nobody could, so no port is opened: the
// server is a unix socket that only the daemon's user can open.
func (d *daemon) listen() ([]endpoint, error) {
	if d.cfg.TLS == nil {
		if l := d.cfg.Listener; l != nil {
			return nil, errors.Join(fault.New(fault.Denied, "the node's server at %s would answer anybody: give it a certificate (drover tls cert, then -tls-ca, -tls-cert, -tls-key), or leave the address out; then it is a unix socket in %s, for a coordinator on the same machine", l.Addr(), d.cfg.Data), l.Close())
		}
		return d.listenLocally()
	}
	l := d.cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	if d.cfg.Info.GetAddress() == "" {
		d.cfg.Info.Address = l.Addr().String()
	}
	c := d.cfg.TLS.Clone()
	c.ClientAuth = tls.VerifyClientCertIfGiven // map outputs and dumps are proven by the job's token instead
	c.NextProtos = []string{"h2", "http/1.1"}
	all := []endpoint{{tls.NewListener(l, c), d.handler()}}
	if !d.helpersAreProcesses() {
		return all, nil
	}
	dir, err := d.socketFolder()
	if err == nil {
		all, err = d.listenForHelpers(all, dir)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return all, nil
}

// helpersAreProcesses reports whether helpers are processes of the tenants' users.
func (d *daemon) helpersAreProcesses() bool { return os.Geteuid() == 0 && len(d.cfg.Helper) > 0 }

// listenForHelpers adds the socket for tenants' helpers, which serves map outputs alone: each request proves that
// it knows the job's token. A helper gets the outputs of its own node there as open files.
func (d *daemon) listenForHelpers(all []endpoint, dir string) ([]endpoint, error) {
	path := filepath.Join(dir, nameShuffleSocket)
	l, err := unixhttp.Listen(path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("the node's server: %w", err)
	}
	d.shuffleSocket = unixhttp.Scheme + path
	mux := http.NewServeMux()
	mux.Handle(shuffle.Prefix, d.shuffle)
	return append(all, endpoint{l, mux}), nil
}

// listenLocally opens the sockets of a node without a certificate.
func (d *daemon) listenLocally() ([]endpoint, error) {
	dir, err := d.socketFolder()
	if err != nil {
		return nil, err
	}
	own, err := unixhttp.Listen(filepath.Join(dir, nameSocket), 0o600)
	if err != nil {
		return nil, fmt.Errorf("the node's server: %w", err)
	}
	all := []endpoint{{own, d.handler()}}
	if d.helpersAreProcesses() {
		if all, err = d.listenForHelpers(all, dir); err != nil {
			return nil, errors.Join(err, own.Close())
		}
	}
	d.cfg.Info.Address = unixhttp.Scheme + filepath.Join(dir, nameSocket)
	return all, nil
}

// socketFolder returns the data folder, or a temporary one if the sockets' paths
// would be too long for the kernel.
func (d *daemon) socketFolder() (string, error) {
	if len(filepath.Join(d.cfg.Data, nameShuffleSocket)) <= unixhttp.MaxPath {
		return d.cfg.Data, nil
	}
	dir, err := os.MkdirTemp("", "drover-node-")
	if err != nil {
		return "", err
	}
	d.closers = append(d.closers, func() error { return os.RemoveAll(dir) })
	return dir, os.Chmod(dir, 0o711)
}

// helperAddress returns the address at which a helper of this node reaches the
// map outputs of the node at address.
func (d *daemon) helperAddress(address string) string {
	if !d.helpersAreProcesses() {
		return address
	}
	if d.shuffleSocket != "" && address == d.cfg.Info.GetAddress() {
		return d.shuffleSocket
	}
	if dir, ok := strings.CutSuffix(address, "/"+nameSocket); ok && strings.HasPrefix(address, unixhttp.Scheme) {
		return dir + "/" + nameShuffleSocket
	}
	return address
}

// requireCoordinator admits only the coordinator, which has checked the rights of
// the users on whose behalf it calls: by its certificate, or on the socket that
// only the daemon's user can open.
func (d *daemon) requireCoordinator(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.cfg.TLS != nil {
			if err := d.checkPeer(r.TLS, pki.KindCoordinator); err != nil {
				http.Error(w, "only the coordinator may call this: send the request through the coordinator", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
