// Package fsys opens the file system of a URI for a user: HDFS clients by name
// service and user, the local tree for file:///. The node daemon has one Set for
// requests; a helper process receives the Config with its request and makes its
// own Set.
package fsys

import (
	"errors"
	"fmt"
	"sync"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/localfs"
	"github.com/drover-run/drover/hdfs/resolve"
	"github.com/drover-run/drover/internal/fault"
)

// Config defines the file systems that a node reaches. Helpers receive it as JSON.
type Config struct {
	// NameNodes of the default name service, host:port, for hdfs:///path.
	NameNodes []string `json:"name_nodes,omitempty"`
	// Services maps the authority of a URI to the NameNodes of a further service.
	Services map[string][]string `json:"services,omitempty"`
	// Allowed are further NameNodes, host:port, that URIs may name; "*" allows
	// any. Tenants choose URIs, so a node must not connect to arbitrary hosts.
	Allowed []string `json:"allowed,omitempty"`
	// LocalAddresses are the addresses of the DataNode on this machine, which is read first.
	LocalAddresses []string `json:"local_addresses,omitempty"`
	Rack           string   `json:"rack,omitempty"`
	// DomainSocket is the domain socket of the DataNode on this machine (dfs.domain.socket.path),
	// which passes the open files of its blocks; "_PORT" in it stands for the DataNode's port. "":
	// its blocks are read over TCP.
	DomainSocket string `json:"domain_socket,omitempty"`
	// Local allows file:///.
	Local bool `json:"local,omitempty"`
	// LocalRoot is the folder that file:/// stands for, which no path leaves; "" is the whole
	// machine. The daemon makes and renames files there with its own rights.
	LocalRoot string `json:"local_root,omitempty"`
	// LocalBlock is the length in bytes of the splits of local files; 0 = 64 MiB.
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

// Set holds the opened file systems; the caller must Close it.
type Set struct {
	config  Config
	waiting func(user string, w hdfs.WaitNotice)
	warn    func(text string)
	warned  sync.Once

	mu    sync.Mutex
	local *localfs.FS
	users map[string]*resolve.Resolver
}

// New makes a Set. waiting is called, from any goroutine, when a NameNode delays
// requests; warn is called, at most once, when the DomainSocket is of no use. Both may be nil.
func New(c Config, waiting func(user string, w hdfs.WaitNotice), warn func(text string)) *Set {
	return &Set{config: c, waiting: waiting, warn: warn, users: map[string]*resolve.Resolver{}}
}

// maxUsers bounds the HDFS users of one node.
const maxUsers = 10_000

// Open returns the file system of a URI for a user, without I/O. Repeated calls for
// one service and user return the same one.
func (s *Set) Open(uri hdfs.URI, user string) (hdfs.FS, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.users[user]
	if r == nil {
		if len(s.users) == maxUsers {
			return nil, fault.New(fault.Exhausted, "this node already serves %d HDFS users", maxUsers)
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
	o.HDFS = client.Options{NameNodes: s.config.NameNodes, LocalAddresses: s.config.LocalAddresses, LocalRack: s.config.Rack, DomainSocket: s.config.DomainSocket}
	if s.warn != nil {
		o.HDFS.Events.ShortCircuitFailed = func(err error) {
			s.warned.Do(func() {
				s.warn(fmt.Sprintf("blocks of this machine's DataNode are read over TCP and not from its files, through %s: %v", s.config.DomainSocket, err))
			})
		}
	}
	if s.waiting != nil {
		o.HDFS.Events.Waiting = func(w hdfs.WaitNotice) { s.waiting(user, w) }
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
	options := localfs.Options{BlockBytes: s.config.LocalBlock, Root: s.config.LocalRoot}
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

// Close closes all file systems.
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
