package mapreduce

import (
	"bytes"

	"github.com/drover-run/drover/internal/keyorder"
)

// Features that a node announces (NodeInfo.features) if it supports Keys and their Order. A node
// without them would silently partition by the first field and sort by bytes.
const (
	FeatureKeys     = "mapreduce-keys"
	FeatureKeyOrder = "mapreduce-key-order"
)

// Keys says which part of a mapper's line is its key, and which reducer gets it. The zero value is
// Hadoop's default: the first field in the order of its bytes, and the hash of the whole key. Keys
// is read-only.
type Keys struct {
	Fields          int      `json:"fields,omitempty"`           // how many of the first fields of a line are its key; 0: 1
	PartitionFields int      `json:"partition_fields,omitempty"` // the hash of this many first fields of a key chooses the reducer; 0: of all
	PartitionKeys   []string `json:"partition_keys,omitempty"`   // the smallest key of each reducer except the first, increasing; empty: the hash chooses
	Order           []string `json:"order,omitempty"`            // how each field is compared, as entries of keyorder.Parse; empty: by the bytes of the key
}

// IsZero reports whether nothing is set.
func (k Keys) IsZero() bool {
	return k.Fields == 0 && k.PartitionFields == 0 && len(k.PartitionKeys) == 0 && len(k.Order) == 0
}

// SplitLine splits a line after its first field, as Split does by default. If a line has no tab,
// the whole line is the key (bare).
func SplitLine(line []byte) (key, value []byte, bare bool) {
	if i := bytes.IndexByte(line, '\t'); i >= 0 {
		return line[:i], line[i+1:], false
	}
	return line, nil, true
}

// Split splits a line of a mapper or combiner after its key. If a line has no more fields than a
// key, the whole line is the key (bare). O(len(line)), no allocation.
func (k *Keys) Split(line []byte) (key, value []byte, bare bool) {
	if i := fieldsEnd(line, k.fields()); i >= 0 {
		return line[:i], line[i+1:], false
	}
	return line, nil, true
}

// fieldsEnd returns the index of the tab after the first n fields (at least one) of a line, or -1
// if there is none.
func fieldsEnd(line []byte, n int) int {
	for at := 0; ; {
		i := bytes.IndexByte(line[at:], '\t')
		if i < 0 {
			return -1
		}
		if at += i; n == 1 {
			return at
		}
		n, at = n-1, at+1
	}
}

// Partition returns the reducer, in [0, n), of a key. n must be at least 1, and
// len(PartitionKeys)+1 if there are any. Order must not be set. O(len(key)), or O(log n)
// comparisons with PartitionKeys.
func (k *Keys) Partition(key []byte, n int) int {
	switch {
	case len(k.PartitionKeys) > 0:
		return rangeOf(key, k.PartitionKeys)
	case k.PartitionFields > 0:
		if i := fieldsEnd(key, k.PartitionFields); i >= 0 {
			key = key[:i]
		}
	}
	return Partition(key, n)
}

// rangeOf returns how many of the increasing partition keys are less than or equal to a key, by
// bytes.
func rangeOf(key []byte, keys []string) int {
	low, high := 0, len(keys)
	for low < high {
		if mid := int(uint(low+high) / 2); string(key) < keys[mid] {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// fields returns the number of fields of a key.
func (k *Keys) fields() int { return max(k.Fields, 1) }

// check returns what is wrong with the keys of a job with this number of reducers, or nil.
func (k *Keys) check(reduces int) error {
	order, known := keyorder.Parse(k.Order)
	switch {
	case k.Fields < 0 || k.Fields > keyorder.MaxFields:
		return specErrorf("keys.fields is %d, it must be from 0 to %d", k.Fields, keyorder.MaxFields)
	case !known:
		return specErrorf("keys.order is %q, want entries of %q", k.Order, keyorder.Entries())
	case len(k.Order) > 0 && len(k.Order) != k.fields():
		return specErrorf("keys.order has %d entries, a key has %d fields", len(k.Order), k.fields())
	case k.PartitionFields < 0 || k.PartitionFields > k.fields():
		return specErrorf("keys.partition_fields is %d, a key has %d", k.PartitionFields, k.fields())
	case len(k.PartitionKeys) == 0:
		return nil
	case k.PartitionFields > 0:
		return specErrorf("keys: both partition_fields and partition_keys are given")
	case len(k.PartitionKeys) != reduces-1:
		return specErrorf("keys.partition_keys has %d keys, %d reducers need %d", len(k.PartitionKeys), reduces, reduces-1)
	}
	for i, s := range k.PartitionKeys[1:] {
		if order.Compare(k.PartitionKeys[i], s) >= 0 {
			return specErrorf("keys.partition_keys[%d] %.60q is not above the one before", i+1, s)
		}
	}
	return nil
}
