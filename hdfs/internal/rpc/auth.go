package rpc

import (
	"context"
	"net"
)

// Auth proves who calls. Simple is the one that exists; a SASL mechanism
// (Kerberos, delegation tokens) would be another.
type Auth interface {
	// Protocol is the byte that announces the mechanism: 0 for none, 0xdf for
	// SASL.
	Protocol() byte
	// Negotiate runs after that byte was sent and before the connection
	// context. It returns the connection to go on with, which may encrypt.
	Negotiate(ctx context.Context, conn net.Conn) (net.Conn, error)
	// User is the effective user that the connection context names.
	User() string
}

// Simple states a user name and proves nothing, as a cluster with
// hadoop.security.authentication=simple wants it.
type Simple string

// Protocol is 0: no authentication.
func (Simple) Protocol() byte { return 0 }

// Negotiate does nothing.
func (Simple) Negotiate(_ context.Context, conn net.Conn) (net.Conn, error) { return conn, nil }

// User is the name.
func (s Simple) User() string { return string(s) }
