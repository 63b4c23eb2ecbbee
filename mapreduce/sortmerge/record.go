package sortmerge

import (
	"encoding/binary"
	"math"
)

// Record is a key with its value. NoValue marks a line without a tab, which
// differs from an empty value. The slices belong to the reader or iterator that
// returned the record and are valid until its next call.
type Record struct {
	Key, Value []byte
	NoValue    bool
}

// maxHeaderBytes is the largest size of the two encoded lengths of a record.
const maxHeaderBytes = 2 * binary.MaxVarintLen64

// putHeader writes the lengths into b and returns their size.
func putHeader(b []byte, r Record) int {
	n := binary.PutUvarint(b, uint64(len(r.Key)))
	v := uint64(0)
	if !r.NoValue {
		v = uint64(len(r.Value)) + 1
	}
	return n + binary.PutUvarint(b[n:], v)
}

// readHeader decodes the lengths at the start of b: size of the header, of the
// key and of the value (-1: none). ok is false if b is too short or damaged.
func readHeader(b []byte) (size, klen, vlen int, ok bool) {
	if len(b) >= 2 && b[0] < 0x80 && b[1] < 0x80 {
		return 2, int(b[0]), int(b[1]) - 1, true
	}
	k, n := binary.Uvarint(b)
	if n <= 0 || k > 1<<31 {
		return 0, 0, 0, false
	}
	v, m := binary.Uvarint(b[n:])
	if m <= 0 || v > 1<<31 {
		return 0, 0, 0, false
	}
	return n + m, int(k), int(v) - 1, true
}

// prefixAt returns the keyPrefix of b[at:at+n]. It reads eight bytes if b has them, even past the
// end of the key: a branch on the unpredictable length of a key would be slower.
func prefixAt(b []byte, at, n int) uint64 {
	if at+8 > len(b) {
		return keyPrefix(b[at : at+n])
	}
	return binary.BigEndian.Uint64(b[at:]) & ^(math.MaxUint64 >> (8 * min(uint(n), 8)))
}

// keyPrefix returns the first eight bytes of key, padded with zeros, as a number
// with the same order.
func keyPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var p uint64
	for i, c := range key {
		p |= uint64(c) << (56 - 8*i)
	}
	return p
}
