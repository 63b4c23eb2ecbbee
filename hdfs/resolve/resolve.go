// Package resolve maps a URI to its file system: the implementation of hdfs.FS, the
// name service and the HDFS user. The node daemon has one Resolver for all tenants.
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

// Options configures a Resolver.
type Options struct {
	// HDFS holds the common options of all HDFS clients. Its NameNodes are those of
	// hdfs:///path; without any, such URIs are refused.
	HDFS client.Options
	// Services maps a name service, used in a URI instead of host:port, to its
	// NameNodes.
	Services map[string][]string
	// Allowed lists the authorities that URIs may name besides the default and the
	// Services; "*" allows every host:port. Tenants choose URIs, and the daemon must
	// not connect to arbitrary hosts.
	Allowed []string
	// Local is the file system of file:///path; nil: such URIs are refused. The
	// Resolver does not close it.
	Local hdfs.FS
}

// Resolver resolves URIs. Its methods may be called concurrently.
type Resolver struct {
	options Options

	mu       sync.Mutex
	services map[string]*client.UserClients // by NameNodes
}

// New returns a Resolver. It does no I/O.
func New(options Options) *Resolver {
	return &Resolver{options: options, services: map[string]*client.UserClients{}}
}

// maxServices bounds the name services of one process.
const maxServices = 100

// FS returns the file system of a URI for an HDFS user, always the same one; the
// Resolver closes it. Errors are ErrInvalid, or ErrPermission if the operator has
// not allowed the URI.
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
		users, err := r.userClients(nameNodes)
		if err != nil {
			return nil, err
		}
		return users.ForUser(user)
	default:
		return nil, fmt.Errorf("%w: %s has no known scheme", hdfs.ErrInvalid, u)
	}
}

// nameNodes returns the NameNode addresses of a URI.
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
		return fallback, nil // any of these NameNodes may be active
	}
	if _, _, err := net.SplitHostPort(u.Authority); err != nil {
		return nil, fmt.Errorf("%w: %s: %q is neither host:port nor a configured name service", hdfs.ErrInvalid, u, u.Authority)
	}
	if slices.Contains(r.options.Allowed, u.Authority) || slices.Contains(r.options.Allowed, "*") {
		return []string{u.Authority}, nil
	}
	return nil, fmt.Errorf("%w: %s: NameNode %s is not on the operator's list", hdfs.ErrPermission, u, u.Authority)
}

func (r *Resolver) userClients(nameNodes []string) (*client.UserClients, error) {
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
	users := client.NewUserClients(options)
	r.services[key] = users
	return users, nil
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
