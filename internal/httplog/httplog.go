// Package httplog sorts what net/http has to say about a server of ours. Callers cause most of it, as
// by a failed handshake, and could fill a log with it: that is for debugging. What befalls the server
// itself, an operator has to see.
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

// levelOf knows net/http's messages by their beginnings. Of those about accepting, such as for lack
// of file descriptors, there is at most about one a second.
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
