// Package wire encodes and decodes Hadoop's protobuf messages field by field,
// without generated code: registering Hadoop's messages a second time, beside
// another HDFS library in the same binary, panics at start.
//
// Decoding never panics and allocates only what the callers keep.
package wire

import (
	"errors"
	"fmt"
	"io"
	"slices"

	pw "google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed: the bytes are not a message, or not the expected one.
var ErrMalformed = errors.New("malformed message")

// Field is one field of a message. Bytes aliases the message.
type Field struct {
	Number pw.Number
	Type   pw.Type
	Varint uint64 // value of varint, fixed32 and fixed64 fields
	Bytes  []byte // value of length-delimited fields
}

// Each calls f for every field in order and stops at its first error. Groups
// are skipped.
func Each(message []byte, f func(Field) error) error {
	for len(message) > 0 {
		number, kind, n := pw.ConsumeTag(message)
		if n < 0 {
			return malformedError(n)
		}
		message = message[n:]
		field := Field{Number: number, Type: kind}
		switch kind {
		case pw.VarintType:
			field.Varint, n = pw.ConsumeVarint(message)
		case pw.BytesType:
			field.Bytes, n = pw.ConsumeBytes(message)
		case pw.Fixed32Type:
			var v uint32
			v, n = pw.ConsumeFixed32(message)
			field.Varint = uint64(v)
		case pw.Fixed64Type:
			field.Varint, n = pw.ConsumeFixed64(message)
		default:
			n = pw.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return malformedError(n)
		}
		message = message[n:]
		if kind == pw.StartGroupType {
			continue
		}
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}

func malformedError(n int) error { return fmt.Errorf("%w: %w", ErrMalformed, pw.ParseError(n)) }

// CheckType returns ErrMalformed unless the field has the type.
func (f Field) CheckType(kind pw.Type) error {
	if f.Type != kind {
		return fmt.Errorf("%w: field %d has wire type %d, not %d", ErrMalformed, f.Number, f.Type, kind)
	}
	return nil
}

// SetUint stores a varint field in v.
func (f Field) SetUint(v *uint64) error {
	*v = f.Varint
	return f.CheckType(pw.VarintType)
}

// SetLength stores a varint field that counts bytes in v. It must not be negative as
// a signed number.
func (f Field) SetLength(v *int64) error {
	*v = int64(f.Varint)
	if *v < 0 {
		return fmt.Errorf("%w: field %d counts %d bytes", ErrMalformed, f.Number, *v)
	}
	return f.CheckType(pw.VarintType)
}

// SetBool stores a varint field in v.
func (f Field) SetBool(v *bool) error {
	*v = f.Varint != 0
	return f.CheckType(pw.VarintType)
}

// SetString copies a length-delimited field into v.
func (f Field) SetString(v *string) error {
	*v = string(f.Bytes)
	return f.CheckType(pw.BytesType)
}

// SetBytes copies a length-delimited field into v.
func (f Field) SetBytes(v *[]byte) error {
	*v = append([]byte{}, f.Bytes...)
	return f.CheckType(pw.BytesType)
}

// Message is a message under construction.
type Message []byte

// Uint appends a varint field.
func (m Message) Uint(number pw.Number, v uint64) Message {
	return pw.AppendVarint(pw.AppendTag(m, number, pw.VarintType), v)
}

// Sint appends a zigzag varint field.
func (m Message) Sint(number pw.Number, v int64) Message {
	return m.Uint(number, pw.EncodeZigZag(v))
}

// Bool appends a varint field.
func (m Message) Bool(number pw.Number, v bool) Message { return m.Uint(number, pw.EncodeBool(v)) }

// String appends a length-delimited field.
func (m Message) String(number pw.Number, v string) Message {
	return pw.AppendString(pw.AppendTag(m, number, pw.BytesType), v)
}

// Bytes appends a length-delimited field: raw bytes or an encoded message.
func (m Message) Bytes(number pw.Number, v []byte) Message {
	return pw.AppendBytes(pw.AppendTag(m, number, pw.BytesType), v)
}

// Fixed32 appends a fixed32 field.
func (m Message) Fixed32(number pw.Number, v uint32) Message {
	return pw.AppendFixed32(pw.AppendTag(m, number, pw.Fixed32Type), v)
}

// Fixed64 appends a fixed64 field.
func (m Message) Fixed64(number pw.Number, v uint64) Message {
	return pw.AppendFixed64(pw.AppendTag(m, number, pw.Fixed64Type), v)
}

// Delimited appends a message, prefixed with its length.
func (m Message) Delimited(v []byte) Message { return pw.AppendBytes(m, v) }

// CutDelimited splits a length-prefixed message from the bytes after it.
func CutDelimited(b []byte) (message, rest []byte, err error) {
	message, n := pw.ConsumeBytes(b)
	if n < 0 {
		return nil, nil, malformedError(n)
	}
	return message, b[n:], nil
}

// ReadDelimited reads a length-prefixed message of at most limit bytes.
func ReadDelimited(r interface {
	io.Reader
	io.ByteReader
}, limit int) ([]byte, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
		if shift >= 28 {
			return nil, fmt.Errorf("%w: length of more than 5 bytes", ErrMalformed)
		}
	}
	if n > uint64(limit) {
		return nil, fmt.Errorf("%w: message of %d bytes is over the limit of %d", ErrMalformed, n, limit)
	}
	b, err := ReadN(r, nil, int(n))
	if err != nil {
		return nil, unexpectedEOF(err)
	}
	return b, nil
}

// maxPreallocBytes bounds the memory allocated for a claimed length before bytes
// arrive.
const maxPreallocBytes = 256 << 10

// ReadN reads n bytes into the memory of buffer, or into new memory. A length from
// the network is only a claim, so memory grows with the bytes that arrive. The error
// is io.EOF if there was no byte at all.
func ReadN(r io.Reader, buffer []byte, n int) ([]byte, error) {
	buffer = buffer[:0]
	for len(buffer) < n {
		have := len(buffer)
		step := min(n-have, max(maxPreallocBytes, have))
		buffer = slices.Grow(buffer, step)[:have+step]
		if _, err := io.ReadFull(r, buffer[have:]); err != nil {
			if have > 0 {
				err = unexpectedEOF(err)
			}
			return nil, err
		}
	}
	return buffer, nil
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
