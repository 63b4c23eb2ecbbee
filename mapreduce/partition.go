package mapreduce

// hashKey returns Hadoop's hash of a key: Text.hashCode, that is
// WritableComparator.hashBytes over the UTF-8 bytes, which starts at 1 and
// treats each byte as signed. O(len(key)), no allocation.
func hashKey(key []byte) int32 {
	h := int32(1)
	for _, b := range key {
		h = 31*h + int32(int8(b))
	}
	return h
}

// Partition returns the reducer, in [0, n), of a key as Hadoop's HashPartitioner
// does: (hash & MaxInt) % n. n must be at least 1.
func Partition(key []byte, n int) int {
	if n == 1 {
		return 0
	}
	return int(uint32(hashKey(key))&0x7fffffff) % n
}
