package scheduler

import (
	"testing"
	"unsafe"
)

// A Node that is not aligned to cache lines takes two where a search reads one.
func TestNodesAreWholeCacheLines(t *testing.T) {
	if size := unsafe.Sizeof(Node{}); size != 448 {
		t.Errorf("a Node is %d bytes: Go aligns one of 448 bytes to a cache line, but not the next larger ones", size)
	}
}
