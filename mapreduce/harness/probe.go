package harness

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"time"
)

// probeTick is how often the probe counts.
const probeTick = 2 * time.Millisecond

// probe is the program with which a node finds out what its levels can do: it
// holds size bytes of memory, counts in a file, and looks at one page after the
// other at each count, so that memory that came back wrong ends it. It runs until
// it is killed.
func probe(file, size string) int {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		fmt.Fprintf(os.Stderr, "harness: probe of %q bytes\n", size)
		return 2
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return 2
	}
	page := os.Getpagesize()
	memory := make([]byte, n)
	fill(memory)
	for i := uint64(1); ; i++ {
		if pages := uint64(len(memory) / page); pages > 0 {
			at := int(i%pages) * page
			if got := binary.LittleEndian.Uint64(memory[at:]); got != word(at) {
				fmt.Fprintf(os.Stderr, "harness: memory at %d holds %x, want %x\n", at, got, word(at))
				return 3
			}
		}
		if _, err := fmt.Fprintf(at0{out}, "%020d", i); err != nil {
			fmt.Fprintln(os.Stderr, "harness:", err)
			return 2
		}
		time.Sleep(probeTick)
	}
}

// fill writes words that no page shares with another, so that nothing merges or
// compresses them away.
func fill(b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(i))
	}
}

func word(i int) uint64 {
	x := uint64(i) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// at0 writes at the beginning of a file.
type at0 struct{ f *os.File }

func (a at0) Write(p []byte) (int, error) { return a.f.WriteAt(p, 0) }
