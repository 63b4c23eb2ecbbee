package client

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/drover-run/drover/hdfs"
)

// maxUsers bounds the HDFS users of one process, each of which has a
// connection to the NameNode.
const maxUsers = 1000

// UserClients holds one Client for each HDFS user. Tenants are different users, and no tenant may
// see, even through a cache, what only another tenant may see.
type UserClients struct {
	options Options

	mu      sync.Mutex
	closed  bool
	clients map[string]*Client
}

// NewUserClients takes the common options of all users; User and Auth are ignored.
// It does no I/O.
func NewUserClients(options Options) *UserClients {
	return &UserClients{options: options, clients: map[string]*Client{}}
}

// ForUser returns the client of a user, always the same one. UserClients closes it,
// not the caller.
func (u *UserClients) ForUser(user string) (*Client, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, fmt.Errorf("hdfs: client for %q: %w", user, net.ErrClosed)
	}
	if c := u.clients[user]; c != nil {
		return c, nil
	}
	if len(u.clients) == maxUsers {
		return nil, fmt.Errorf("%w: more than %d HDFS users in one process", hdfs.ErrInvalid, maxUsers)
	}
	options := u.options
	options.User, options.auth = user, nil
	c, err := New(options)
	if err != nil {
		return nil, err
	}
	u.clients[user] = c
	return c, nil
}

// Close closes all clients.
func (u *UserClients) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	var errs []error
	for _, c := range u.clients {
		errs = append(errs, c.Close())
	}
	clear(u.clients)
	return errors.Join(errs...)
}
