package systemd

import (
	"bytes"
	"context"
	"log/slog"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// LogsToJournal reports whether standard error goes to the journal. A daemon then logs with fields
// instead.
func LogsToJournal() bool {
	to, err := journal.StderrIsJournalStream()
	return err == nil && to
}

// fieldPrefix begins the name of each of our fields, so that no attribute can be taken for a field
// that journald or another program knows.
const fieldPrefix = "DROVER_"

// JournalHandler is a slog.Handler that writes records to the journal. The message contains the
// attributes as text, because journalctl shows only the message. Each attribute is also a field:
// attempt becomes DROVER_ATTEMPT.
type JournalHandler struct {
	send   func(message string, priority journal.Priority, fields map[string]string) error
	level  slog.Leveler
	fixed  map[string]string // fields of every record
	attrs  []slog.Attr       // from WithAttrs, their groups in the key
	groups string            // open groups, each followed by a dot
	spare  slog.Handler      // for records that the journal does not accept
}

// NewJournalHandler returns a handler of records of a level and above. unit is the service to whose
// log the records belong, even while the process is in the cgroup of another service. spare gets
// the records that cannot be sent to journald.
func NewJournalHandler(level slog.Leveler, identifier, unit string, spare slog.Handler) *JournalHandler {
	fixed := map[string]string{"SYSLOG_IDENTIFIER": identifier}
	if unit != "" {
		fixed["OBJECT_SYSTEMD_UNIT"] = unit
	}
	return &JournalHandler{send: journal.Send, level: level, fixed: fixed, spare: spare}
}

// Enabled implements slog.Handler.
func (h *JournalHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h *JournalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append([]slog.Attr(nil), h.attrs...)
	for _, a := range attrs {
		c.attrs = append(c.attrs, slog.Attr{Key: h.groups + a.Key, Value: a.Value})
	}
	c.spare = h.spare.WithAttrs(attrs)
	return &c
}

// WithGroup implements slog.Handler.
func (h *JournalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.groups, c.spare = h.groups+name+".", h.spare.WithGroup(name)
	return &c
}

// Handle implements slog.Handler.
func (h *JournalHandler) Handle(ctx context.Context, r slog.Record) error {
	fields := make(map[string]string, len(h.fixed)+len(h.attrs)+r.NumAttrs())
	for k, v := range h.fixed {
		fields[k] = v
	}
	var attrs []slog.Attr
	for _, a := range h.attrs {
		attrs = flatten(attrs, "", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		attrs = flatten(attrs, h.groups, a)
		return true
	})
	for _, a := range attrs {
		if name := fieldName(a.Key); name != "" {
			fields[name] = a.Value.String()
		}
	}
	if err := h.send(message(r, attrs), priority(r.Level), fields); err != nil {
		return h.spare.Handle(ctx, r)
	}
	return nil
}

// flatten appends an attribute to a list. A group is appended as its members, with dots in their
// names.
func flatten(list []slog.Attr, prefix string, a slog.Attr) []slog.Attr {
	v := a.Value.Resolve()
	if v.Kind() != slog.KindGroup {
		return append(list, slog.Attr{Key: prefix + a.Key, Value: v})
	}
	if a.Key != "" {
		prefix += a.Key + "."
	}
	for _, m := range v.Group() {
		list = flatten(list, prefix, m)
	}
	return list
}

// message returns the text of a record with its attributes as key=value.
func message(r slog.Record, attrs []slog.Attr) string {
	var b bytes.Buffer
	text := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: r.Level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return a
	}})
	plain := slog.Record{Level: r.Level} // without time and text, so that ReplaceAttr need not remove them
	for _, a := range attrs {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			a.Key += "_" // otherwise ReplaceAttr would remove it as the record's own
		}
		plain.AddAttrs(a)
	}
	_ = text.Handle(context.Background(), plain) // a buffer takes everything
	return strings.TrimSpace(r.Message + " " + strings.TrimSpace(b.String()))
}

// fieldName returns the name of a field for an attribute: letters, digits and underscores, at most
// 64 characters, as journald requires.
func fieldName(key string) string {
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			return c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		default:
			return '_'
		}
	}, key)
	if name == "" || len(fieldPrefix)+len(name) > 64 {
		return ""
	}
	return fieldPrefix + name
}

// priority translates a level to that of syslog.
func priority(l slog.Level) journal.Priority {
	switch {
	case l >= slog.LevelError:
		return journal.PriErr
	case l >= slog.LevelWarn:
		return journal.PriWarning
	case l >= slog.LevelInfo:
		return journal.PriInfo
	default:
		return journal.PriDebug
	}
}
