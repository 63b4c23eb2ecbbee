package rpc

import (
	"context"
	"net"
)

// Auth authenticates the caller. SimpleAuth is the only implementation; a SASL
// mechanism (Kerberos, delegation tokens) could be another.
type Auth interface {
	// Protocol returns the byte of the mechanism: 0 for none, 0xdf for SASL.
	Protocol() byte
	// Negotiate runs after that byte and before the connection context are sent. It
	// returns the connection to use, which may encrypt.
	Negotiate(ctx context.Context, conn net.Conn) (net.Conn, error)
	// User returns the effective user, sent in the connection context.
	User() string
}

// SimpleAuth states a user name without proof, as clusters with
// hadoop.security.authentication=simple expect.
type SimpleAuth string

// Protocol returns 0: no authentication.
func (SimpleAuth) Protocol() byte { return 0 }

// Negotiate returns conn unchanged.
func (SimpleAuth) Negotiate(_ context.Context, conn net.Conn) (net.Conn, error) { return conn, nil }

// User returns the name.
func (s SimpleAuth) User() string { return string(s) }
