package mapreduce

import (
	"fmt"

	"github.com/drover-run/drover/internal/keyorder"
)

// KeyCoder encodes the keys of a job that are not ordered by their bytes: the bytes of the
// encodings have the job's order. From the mapper's output to the reducer's input, records are
// sorted and merged by the bytes of the encodings. Programs see the original keys. One goroutine
// may call Encode while another calls Decode; further concurrent calls are not safe.
type KeyCoder struct {
	keys     *Keys
	order    keyorder.Order
	limits   []string // the encoded PartitionKeys
	reduces  int
	encoded  []byte
	original []byte
}

// Coder returns the encoding of keys for this number of reducers, or nil if keys are ordered by
// their bytes.
func (k *Keys) Coder(reduces int) *KeyCoder {
	order, _ := keyorder.Parse(k.Order)
	if order == nil {
		return nil
	}
	c := &KeyCoder{keys: k, order: order, reduces: reduces}
	for _, key := range k.PartitionKeys {
		c.limits = append(c.limits, string(order.Append(nil, []byte(key))))
	}
	return c
}

// Encode returns the reducer of a key and the encoded key, which is valid until the next call.
// O(len(key)), plus O(log n) comparisons with PartitionKeys; no allocation.
func (c *KeyCoder) Encode(key []byte) (part int, encoded []byte) {
	c.encoded = c.order.Append(c.encoded[:0], key)
	if len(c.limits) > 0 {
		return rangeOf(c.encoded, c.limits), c.encoded
	}
	return c.keys.Partition(key, c.reduces), c.encoded
}

// Decode returns the key of an encoding, valid until the next call. Its error wraps ErrCorrupt.
func (c *KeyCoder) Decode(encoded []byte) (key []byte, err error) {
	if c.original, err = c.order.Decode(c.original[:0], encoded); err != nil {
		return nil, fmt.Errorf("a record: %w: %w", ErrCorrupt, err)
	}
	return c.original, nil
}
