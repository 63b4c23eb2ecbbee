// Package fsys opens the file system of a URI for a user: HDFS clients by name
// service and user, the local tree for file:///. The node daemon has one Set
// for orders; a helper process gets the Config with its request and makes its
// own.
package fsys

import (
	"errors"
	"sync"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/localfs"
	"github.com/drover-run/drover/hdfs/resolve"
	"github.com/drover-run/drover/internal/fault"
)

// Config says what a node reaches. It travels to helpers as JSON.
type Config struct {
	// NameNodes of the default name service, host:port, for hdfs:///path.
	NameNodes []string `json:"name_nodes,omitempty"`
	// Services gives the NameNodes of further services by the authority of a
	// URI.
	Services map[string][]string `json:"services,omitempty"`
	// Allowed are further NameNodes, host:port, that URIs may name; "*" allows
	// any. Tenants choose URIs, and a node does not connect to wherever they say.
	Allowed []string `json:"allowed,omitempty"`
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
	users map[string]*resolve.Resolver
}

// New makes a Set. waiting, which may be nil, hears of requests that a NameNode
// holds back, from any goroutine.
func New(c Config, waiting func(user string, w hdfs.Waiting)) *Set {
	return &Set{config: c, waiting: waiting, users: map[string]*resolve.Resolver{}}
}

// maxUsers bounds the HDFS users of one node.
const maxUsers = 10_000

// Open gives the file system of a URI for a user. It does no I/O. Every Open
// of one service and user gives the same one.
func (s *Set) Open(uri hdfs.URI, user string) (hdfs.FS, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.users[user]
	if r == nil {
		if len(s.users) == maxUsers {
			return nil, fault.New(fault.Exhausted, "this node works for %d HDFS users already", maxUsers)
		}
		var err error
		if r, err = s.resolver(user); err != nil {
			return nil, err
		}
		s.users[user] = r
	}
	fs, err := r.FS(uri, user)
	return fs, Classed(err)
}

func (s *Set) resolver(user string) (*resolve.Resolver, error) {
	o := resolve.Options{Services: s.config.Services, Allowed: s.config.Allowed}
	o.HDFS = client.Options{NameNodes: s.config.NameNodes, LocalAddresses: s.config.LocalAddresses, LocalRack: s.config.Rack}
	if s.waiting != nil {
		o.HDFS.Events.Waiting = func(w hdfs.Waiting) { s.waiting(user, w) }
	}
	if s.config.Local {
		local, err := s.openLocal()
		if err != nil {
			return nil, err
		}
		o.Local = local
	}
	return resolve.New(o), nil
}

func (s *Set) openLocal() (*localfs.FS, error) {
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

// Close closes all of them.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, r := range s.users {
		err = errors.Join(err, r.Close())
	}
	if s.local != nil {
		err = errors.Join(err, s.local.Close())
	}
	clear(s.users)
	s.local = nil
	return err
}
