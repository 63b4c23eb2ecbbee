package boltpages

import (
	"encoding/binary"
	"slices"
)

// replaced reports whether damaged meta page i (the other page is intact) is older than the intact
// page, or was being replaced when the power failed. Then the intact page is the newest
// acknowledged state.
//
// The checksum is the last field of a meta page. A partly written page therefore still has the
// checksum of the transaction before the intact page's transaction. Its root and end have been
// overwritten, so replaced tries all possible values of both. A newest page that was intact once,
// and was damaged later, has the checksum of a later transaction or of none, and does not match:
// O(pages) 64-bit numbers on either side match by chance for fewer than one in a million files of a
// gigabyte.
func (p *File) replaced(i int64) bool {
	b := make([]byte, pageHeader+metaLength+8)
	if _, err := p.r.ReadAt(b, i*p.page); err != nil || binary.LittleEndian.Uint64(b) != uint64(i) || p.epoch == 0 {
		return false
	}
	b = b[pageHeader:]
	// The fields that are equal in all transactions of a file without a free list.
	before := fnvForward(fnvStart, b[:16])
	epoch := binary.LittleEndian.AppendUint64(nil, p.epoch-1)
	after := fnvBack(binary.LittleEndian.Uint64(b[metaLength:]), epoch)
	var number [8]byte
	states := make([]uint64, 0, p.end)
	for root := uint64(2); root < p.end; root++ {
		binary.LittleEndian.PutUint64(number[:], root)
		states = append(states, fnvForward(fnvForward(before, number[:]), b[24:40]))
	}
	slices.Sort(states)
	for end := uint64(3); end <= p.end; end++ {
		binary.LittleEndian.PutUint64(number[:], end)
		if _, ok := slices.BinarySearch(states, fnvBack(after, number[:])); ok {
			return true
		}
	}
	return false
}

// The 64-bit FNV-1a hash, which can also be computed backwards from its end.
const (
	fnvStart   = 14695981039346656037
	fnvPrime   = 1099511628211
	fnvInverse = 0xce965057aff6957b // times fnvPrime is 1, modulo 2^64
)

func fnvForward(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return h
}

// fnvBack returns the hash before b was added, given the hash h after b was added.
func fnvBack(h uint64, b []byte) uint64 {
	for _, c := range slices.Backward(b) {
		h = h*fnvInverse ^ uint64(c)
	}
	return h
}
