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

	droverv1 "github.com/drover-run/drover/api/drover/v1"
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

// sockets owns the listeners of the node's HTTP servers, and the address at which helpers reach its
// map outputs. listen sets the node's address once, before anything reads it; afterwards nothing
// changes.
type sockets struct {
	data        string
	tls         *tls.Config // nil: unix sockets, no port
	connections *pki.Connections
	listener    net.Listener
	info        *droverv1.NodeInfo
	helpers     bool   // helpers are processes of the tenants' users
	shuffle     string // the address for tenants' helpers; empty where there are none
	temporary   string // the sockets' folder if the data folder's path is too long for them; "" otherwise
}

func newSockets(cfg *Config, connections *pki.Connections) *sockets {
	return &sockets{
		data: cfg.Data, tls: cfg.tls, connections: connections, listener: cfg.Listener, info: cfg.Info,
		helpers: os.Geteuid() == 0 && len(cfg.Helper) > 0,
	}
}

// listen opens the node's HTTP servers and sets the node's address. With a certificate there is one
// server, on the given listener, and callers authenticate by TLS. Without a certificate nobody
// could authenticate, so no port is opened: the server is a unix socket that only the daemon's user
// can open. all serves everything, outputs only map outputs.
func (s *sockets) listen(all, outputs http.Handler) ([]endpoint, error) {
	if s.tls == nil {
		if l := s.listener; l != nil {
			return nil, errors.Join(fault.New(fault.Denied, "the node's server at %s would answer anybody: give it a certificate (drover tls cert, then -tls-ca, -tls-cert, -tls-key), or leave the address out; then it is a unix socket in %s, for a coordinator on the same machine", l.Addr(), s.data), l.Close())
		}
		return s.listenLocally(all, outputs)
	}
	l := s.listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	if s.info.GetAddress() == "" {
		s.info.Address = l.Addr().String()
	}
	c := s.tls.Clone()
	c.ClientAuth = tls.VerifyClientCertIfGiven // requests for map outputs and dumps show the job's token instead
	c.NextProtos = []string{"h2", "http/1.1"}
	open := []endpoint{{tls.NewListener(l, s.connections.Config(c)), all}}
	if !s.helpers {
		return open, nil
	}
	dir, err := s.folder()
	if err == nil {
		open, err = s.listenForHelpers(open, dir, outputs)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return open, nil
}

// listenForHelpers adds the socket for tenants' helpers, which serves only map outputs. Each
// request must contain the job's token. Through it a helper gets the outputs of its own node as
// open files.
func (s *sockets) listenForHelpers(open []endpoint, dir string, outputs http.Handler) ([]endpoint, error) {
	path := filepath.Join(dir, nameShuffleSocket)
	l, err := unixhttp.Listen(path, 0o666)
	if err != nil {
		return nil, fmt.Errorf("the node's server: %w", err)
	}
	s.shuffle = unixhttp.Scheme + path
	mux := http.NewServeMux()
	mux.Handle(shuffle.Prefix, outputs)
	return append(open, endpoint{l, mux}), nil
}

// listenLocally opens the sockets of a node without a certificate.
func (s *sockets) listenLocally(all, outputs http.Handler) ([]endpoint, error) {
	dir, err := s.folder()
	if err != nil {
		return nil, err
	}
	own, err := unixhttp.Listen(filepath.Join(dir, nameSocket), 0o600)
	if err != nil {
		return nil, fmt.Errorf("the node's server: %w", err)
	}
	open := []endpoint{{own, all}}
	if s.helpers {
		if open, err = s.listenForHelpers(open, dir, outputs); err != nil {
			return nil, errors.Join(err, own.Close())
		}
	}
	s.info.Address = unixhttp.Scheme + filepath.Join(dir, nameSocket)
	return open, nil
}

// folder returns the data folder, or a temporary one if the sockets' paths
// would be too long for the kernel.
func (s *sockets) folder() (string, error) {
	if len(filepath.Join(s.data, nameShuffleSocket)) <= unixhttp.MaxPath {
		return s.data, nil
	}
	dir, err := os.MkdirTemp("", "drover-node-")
	if err != nil {
		return "", err
	}
	s.temporary = dir
	return dir, os.Chmod(dir, 0o711)
}

// close removes what listen made in addition to the listeners.
func (s *sockets) close() error {
	if s.temporary == "" {
		return nil
	}
	return os.RemoveAll(s.temporary)
}

// helperAddress returns the address at which a helper of this node reaches the
// map outputs of the node at address.
func (s *sockets) helperAddress(address string) string {
	if !s.helpers {
		return address
	}
	if s.shuffle != "" && address == s.info.GetAddress() {
		return s.shuffle
	}
	if dir, ok := strings.CutSuffix(address, "/"+nameSocket); ok && strings.HasPrefix(address, unixhttp.Scheme) {
		return dir + "/" + nameShuffleSocket
	}
	return address
}
