// Package httplog assigns levels to net/http's messages about our servers. Callers cause most
// messages, for example by a failed handshake, and could fill a log with them: these have level
// debug. Operators must see the messages about failures of the server itself.
package httplog

import (
	"context"
	"log"
	"log/slog"
	"strings"
)

// New returns the ErrorLog of an http.Server whose records go to h.
func New(h slog.Handler) *log.Logger { return log.New(writer{slog.New(h)}, "", 0) }

type writer struct{ log *slog.Logger }

// Write logs one message of net/http.
func (w writer) Write(b []byte) (int, error) {
	message := strings.TrimSpace(string(b))
	w.log.Log(context.Background(), levelOf(message), message)
	return len(b), nil
}

// levelOf recognises net/http's messages by their beginnings. Messages about failed accepts, such
// as for lack of file descriptors, occur at most about once a second.
func levelOf(message string) slog.Level {
	switch {
	case strings.HasPrefix(message, "http: Accept error"):
		return slog.LevelWarn
	case strings.HasPrefix(message, "http: panic serving"), strings.HasPrefix(message, "http2: panic serving"):
		return slog.LevelError
	default:
		return slog.LevelDebug
	}
}
