// Package resolve finds the file system of a URI: which implementation of
// hdfs.FS, for which name service, as which HDFS user. The node daemon keeps one
// Resolver for all its tenants.
package resolve

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
)

// Options of a Resolver.
type Options struct {
	// HDFS is what all HDFS clients have in common. Its NameNodes are those of
	// hdfs:///path; none means that such URIs are refused.
	HDFS client.Options
	// Services are the NameNodes of a URI that names a service instead of
	// host:port.
	Services map[string][]string
	// Allowed are the authorities that URIs may name besides the default and
	// the Services; "*" allows every host:port. Tenants choose URIs, and a
	// daemon should not connect to wherever they say.
	Allowed []string
	// Local is the file system of file:///path; nil means that such URIs are
	// refused. It is not closed with the Resolver.
	Local hdfs.FS
}

// Resolver gives file systems. Its methods may be called from many goroutines.
type Resolver struct {
	options Options

	mu       sync.Mutex
	services map[string]*client.Users // by NameNodes
}

// New does no I/O.
func New(options Options) *Resolver {
	return &Resolver{options: options, services: map[string]*client.Users{}}
}

// maxServices bounds the name services of one process.
const maxServices = 100

// FS gives the file system of a URI for an HDFS user. It is the same one each
// time, and closed with the Resolver. Errors are ErrInvalid or, where the
// operator has not allowed it, ErrPermission.
func (r *Resolver) FS(u hdfs.URI, user string) (hdfs.FS, error) {
	switch u.Scheme {
	case hdfs.SchemeLocal:
		if r.options.Local == nil {
			return nil, fmt.Errorf("%w: %s: local files are not allowed as input or output here; put them into HDFS", hdfs.ErrPermission, u)
		}
		return r.options.Local, nil
	case hdfs.SchemeHDFS:
		nameNodes, err := r.nameNodes(u)
		if err != nil {
			return nil, err
		}
		users, err := r.users(nameNodes)
		if err != nil {
			return nil, err
		}
		return users.As(user)
	default:
		return nil, fmt.Errorf("%w: %s has no known scheme", hdfs.ErrInvalid, u)
	}
}

// nameNodes gives the addresses that a URI stands for.
func (r *Resolver) nameNodes(u hdfs.URI) ([]string, error) {
	fallback := r.options.HDFS.NameNodes
	if u.Authority == "" {
		if len(fallback) == 0 {
			return nil, fmt.Errorf("%w: %s names no NameNode and none is configured; write hdfs://host:port%s", hdfs.ErrInvalid, u, u.Path)
		}
		return fallback, nil
	}
	if service := r.options.Services[u.Authority]; len(service) > 0 {
		return service, nil
	}
	if slices.Contains(fallback, u.Authority) {
		return fallback, nil // any of them may be the active one
	}
	if _, _, err := net.SplitHostPort(u.Authority); err != nil {
		return nil, fmt.Errorf("%w: %s: %q is neither host:port nor a configured name service", hdfs.ErrInvalid, u, u.Authority)
	}
	if slices.Contains(r.options.Allowed, u.Authority) || slices.Contains(r.options.Allowed, "*") {
		return []string{u.Authority}, nil
	}
	return nil, fmt.Errorf("%w: %s: NameNode %s is not on the operator's list", hdfs.ErrPermission, u, u.Authority)
}

func (r *Resolver) users(nameNodes []string) (*client.Users, error) {
	key := strings.Join(nameNodes, ",")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.services == nil {
		return nil, fmt.Errorf("hdfs: %w", net.ErrClosed)
	}
	if users := r.services[key]; users != nil {
		return users, nil
	}
	if len(r.services) == maxServices {
		return nil, fmt.Errorf("%w: more than %d name services in one process", hdfs.ErrInvalid, maxServices)
	}
	options := r.options.HDFS
	options.NameNodes = nameNodes
	users := client.NewUsers(options)
	r.services[key] = users
	return users, nil
}

// DataNodeLost makes all clients forget the block locations on a DataNode (IP
// address or host name).
func (r *Resolver) DataNodeLost(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, users := range r.services {
		users.DataNodeLost(address)
	}
}

// Close closes all clients.
func (r *Resolver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, users := range r.services {
		errs = append(errs, users.Close())
	}
	r.services = nil
	return errors.Join(errs...)
}
