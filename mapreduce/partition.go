package mapreduce

// HashKey is the hash of a key in Hadoop: Text.hashCode, that is
// WritableComparator.hashBytes over the UTF-8 bytes, which starts at 1 and
// takes each byte as signed. O(len(key)), no allocation.
func HashKey(key []byte) int32 {
	h := int32(1)
	for _, b := range key {
		h = 31*h + int32(int8(b))
	}
	return h
}

// Partition is the reducer, in [0, n), that gets a key: Hadoop's
// HashPartitioner, (hash & MaxInt) % n. n must be at least 1.
func Partition(key []byte, n int) int {
	return int(uint32(HashKey(key))&0x7fffffff) % n
}
