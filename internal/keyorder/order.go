package keyorder

import (
	"bytes"
	"errors"
	"slices"
	"strings"
)

// MaxFields is the maximum number of fields of a key.
const MaxFields = 64

// Entries of an order: how one field is compared.
const (
	asText       = "text"
	asTextDesc   = "text desc"
	asNumber     = "number"
	asNumberDesc = "number desc"
)

// Entries returns the entries that Parse accepts.
func Entries() []string { return []string{asText, asTextDesc, asNumber, asNumberDesc} }

// Order says how the fields of a key are compared, one after the other. Nil is the order of the
// key's bytes.
type Order []field

// field says how one field is compared. Only its methods know the encoding.
type field struct{ number, desc bool }

// Parse returns the order of entries. It is nil if all entries are "text", because such keys are
// compared by their bytes. ok is false if an entry is not one of Entries.
func Parse(entries []string) (o Order, ok bool) {
	for _, e := range entries {
		if !slices.Contains(Entries(), e) {
			return nil, false
		}
		o = append(o, field{number: e == asNumber || e == asNumberDesc, desc: e == asTextDesc || e == asNumberDesc})
	}
	if !slices.ContainsFunc(o, func(f field) bool { return f.number || f.desc }) {
		return nil, true
	}
	return o, true
}

// IsText reports whether field i is compared by its bytes, ascending.
func (o Order) IsText(i int) bool { return o == nil || o[i] == field{} }

// Compare compares two keys: below zero if a comes before b, and zero only if they are the same.
// O(length).
func (o Order) Compare(a, b string) int {
	if o == nil {
		return strings.Compare(a, b)
	}
	return bytes.Compare(o.Append(nil, []byte(a)), o.Append(nil, []byte(b)))
}

// Append appends the encoding of a key; the bytes of encodings have the order o. o must not be nil.
// O(len(key)).
func (o Order) Append(dst, key []byte) []byte {
	last := len(o) - 1
	for i, f := range o {
		end := -1
		if i < last {
			end = bytes.IndexByte(key, '\t')
		}
		if end < 0 {
			return f.append(dst, key)
		}
		dst, key = f.append(dst, key[:end]), key[end+1:]
	}
	return dst
}

// errEncoding is the error for bytes that Append did not write.
var errEncoding = errors.New("not the encoding of a key")

// Decode appends the key whose encoding is given. O(length of the key).
func (o Order) Decode(dst, encoded []byte) ([]byte, error) {
	for i, f := range o {
		if i > 0 {
			dst = append(dst, '\t')
		}
		n := 0
		if dst, n = f.decode(dst, encoded); n < 0 {
			return nil, errEncoding
		}
		if encoded = encoded[n:]; len(encoded) == 0 {
			return dst, nil
		}
	}
	return nil, errEncoding
}

// append appends the encoding of one field. No encoding is a prefix of another one. The encoding
// for desc is the ascending one with all bits inverted.
func (f field) append(dst, b []byte) []byte {
	from := len(dst)
	if f.number {
		dst = appendNumber(dst, b)
	} else {
		dst = appendText(dst, b)
	}
	if f.desc {
		for i := from; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}

// decode appends the field at the beginning of an encoding and returns the length of the field's
// encoding, -1 if it is damaged.
func (f field) decode(dst, encoded []byte) (out []byte, n int) {
	r := reader{b: encoded}
	if f.desc {
		r.invert = 0xff
	}
	if f.number {
		dst = r.number(dst)
	} else {
		dst = r.text(dst)
	}
	if r.failed {
		return dst, -1
	}
	return dst, r.at
}

// reader reads the bytes of an encoding.
type reader struct {
	b      []byte
	at     int
	invert byte // 0xff inverts all bits of each byte
	failed bool
}

func (r *reader) next() byte {
	if r.at == len(r.b) {
		r.failed = true
		return 0
	}
	r.at++
	return r.b[r.at-1] ^ r.invert
}

// textEnd ends the encoding of a text. appendText increments each byte up to tab, so that 0 occurs
// only as the end. Tab becomes the byte of a newline, which no key contains.
const textEnd = 0

func appendText(dst, b []byte) []byte {
	for _, c := range b {
		if c <= '\t' {
			c++
		}
		dst = append(dst, c)
	}
	return append(dst, textEnd)
}

func (r *reader) text(dst []byte) []byte {
	for {
		c := r.next()
		if c == textEnd {
			return dst
		}
		if c <= '\t'+1 {
			c--
		}
		dst = append(dst, c)
	}
}
