// Package fsys opens the file system of a URI for a user: HDFS clients by name
// service and user, the local tree for file:///. The node daemon has one Set
// for orders; a helper process gets the Config with its request and makes its
// own.
package fsys

import (
	"errors"
	"net"
	"sync"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/localfs"
	"github.com/drover-run/drover/internal/fault"
)

// Config says what a node reaches. It travels to helpers as JSON.
type Config struct {
	// NameNodes of the default name service, host:port, for hdfs:///path.
	NameNodes []string `json:"name_nodes,omitempty"`
	// Services gives the NameNodes of further services by the authority of a
	// URI; an authority that is not listed and has a port names its NameNode.
	Services map[string][]string `json:"services,omitempty"`
	// LocalAddresses are those of the DataNode on this machine, read first.
	LocalAddresses []string `json:"local_addresses,omitempty"`
	Rack           string   `json:"rack,omitempty"`
	// Local lets file:/// be opened.
	Local bool `json:"local,omitempty"`
	// LocalBlock is the length in bytes in which local files are cut into
	// splits; 0 = 64 MiB.
	LocalBlock int64 `json:"local_block,omitempty"`
}

// Schemes lists the schemes that the node reaches.
func (c Config) Schemes() []string {
	var s []string
	if c.Local {
		s = append(s, hdfs.SchemeLocal.String())
	}
	if len(c.NameNodes) > 0 || len(c.Services) > 0 {
		s = append(s, hdfs.SchemeHDFS.String())
	}
	return s
}

// Set is the opened file systems. Close it.
type Set struct {
	config  Config
	waiting func(user string, w hdfs.Waiting)

	mu    sync.Mutex
	local *localfs.FS
	open  map[service]*client.Client
}

type service struct{ authority, user string }

// New makes a Set. waiting, which may be nil, hears of requests that a NameNode
// holds back, from any goroutine.
func New(c Config, waiting func(user string, w hdfs.Waiting)) *Set {
	return &Set{config: c, waiting: waiting, open: map[service]*client.Client{}}
}

// Open gives the file system of a URI for a user. It does no I/O. Every Open
// of one service and user gives the same one.
func (s *Set) Open(uri hdfs.URI, user string) (hdfs.FS, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch uri.Scheme {
	case hdfs.SchemeLocal:
		return s.openLocal()
	case hdfs.SchemeHDFS:
		return s.openHDFS(uri.Authority, user)
	default:
		return nil, fault.New(fault.Unsupported, "%s: no such file system", uri)
	}
}

func (s *Set) openLocal() (hdfs.FS, error) {
	if !s.config.Local {
		return nil, fault.New(fault.Unsupported, "this node does not read local files: use hdfs://, or let the node's configuration allow file://")
	}
	if s.local != nil {
		return s.local, nil
	}
	options := localfs.Options{BlockBytes: s.config.LocalBlock}
	if len(s.config.LocalAddresses) > 0 {
		options.Host = hdfs.Replica{IP: s.config.LocalAddresses[0], Host: s.config.LocalAddresses[0], Rack: s.config.Rack}
	}
	fs, err := localfs.New(options)
	if err != nil {
		return nil, err
	}
	s.local = fs
	return fs, nil
}

func (s *Set) openHDFS(authority, user string) (hdfs.FS, error) {
	key := service{authority, user}
	if c := s.open[key]; c != nil {
		return c, nil
	}
	nodes, err := s.nameNodes(authority)
	if err != nil {
		return nil, err
	}
	options := client.Options{NameNodes: nodes, User: user, LocalAddresses: s.config.LocalAddresses, LocalRack: s.config.Rack}
	if s.waiting != nil {
		options.Events.Waiting = func(w hdfs.Waiting) { s.waiting(user, w) }
	}
	c, err := client.New(options)
	if err != nil {
		return nil, err
	}
	s.open[key] = c
	return c, nil
}

func (s *Set) nameNodes(authority string) ([]string, error) {
	switch nodes, ok := s.config.Services[authority]; {
	case ok:
		return nodes, nil
	case authority == "" && len(s.config.NameNodes) > 0:
		return s.config.NameNodes, nil
	case authority == "":
		return nil, fault.New(fault.Unsupported, "hdfs:/// names no NameNode and this node has no default: write hdfs://host:port/path, or give the node its NameNodes")
	}
	if _, _, err := net.SplitHostPort(authority); err != nil {
		return nil, fault.New(fault.Unsupported, "hdfs://%s/: no such name service on this node, and without a port it is no NameNode: write host:port, or name the service in the node's configuration", authority)
	}
	return []string{authority}, nil
}

// Close closes all of them.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, c := range s.open {
		err = errors.Join(err, c.Close())
	}
	if s.local != nil {
		err = errors.Join(err, s.local.Close())
	}
	clear(s.open)
	s.local = nil
	return err
}
