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

// Users gives one Client for each HDFS user: tenants are different users, and
// what one may see (also in a cache) another may not.
type Users struct {
	options Options

	mu      sync.Mutex
	closed  bool
	clients map[string]*Client
}

// NewUsers takes what all users have in common; User and Auth of the options
// are ignored. It does no I/O.
func NewUsers(options Options) *Users {
	return &Users{options: options, clients: map[string]*Client{}}
}

// As gives the client of a user, the same one each time. It is closed with
// Users, not by the caller.
func (u *Users) As(user string) (*Client, error) {
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
	options.User, options.Auth = user, nil
	c, err := New(options)
	if err != nil {
		return nil, err
	}
	u.clients[user] = c
	return c, nil
}

// DataNodeLost tells all clients; see Client.DataNodeLost.
func (u *Users) DataNodeLost(address string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.clients {
		c.DataNodeLost(address)
	}
}

// Close closes all clients.
func (u *Users) Close() error {
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
