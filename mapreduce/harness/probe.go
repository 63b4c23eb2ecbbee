package harness

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// probeInterval is the time between two counts of the probe.
const probeInterval = 2 * time.Millisecond

// maxProbeCounts is ten minutes of running, many times what a probe takes.
const maxProbeCounts = uint64(10 * time.Minute / probeInterval)

// runProbe is the program with which a node tests its suspension levels. It holds size bytes of
// memory, counts in a file, and at each count verifies the next page, so that wrongly restored
// memory ends it. It runs until it is killed. If the daemon ends before it kills the probe, the
// probe ends after maxProbeCounts, or when its file is unlinked.
func runProbe(file, size string) int {
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
	fillPattern(memory)
	for i := uint64(1); i <= maxProbeCounts; i++ {
		if pages := uint64(len(memory) / page); pages > 0 {
			at := int(i%pages) * page
			if got := binary.LittleEndian.Uint64(memory[at:]); got != patternWord(at) {
				fmt.Fprintf(os.Stderr, "harness: memory at %d holds %x, want %x\n", at, got, patternWord(at))
				return 3
			}
		}
		if _, err := fmt.Fprintf(offsetZeroWriter{out}, "%020d", i); err != nil {
			fmt.Fprintln(os.Stderr, "harness:", err)
			return 2
		}
		if isUnlinked(out) {
			fmt.Fprintf(os.Stderr, "harness: %s is gone: nobody waits for this probe\n", file)
			return 2
		}
		time.Sleep(probeInterval)
	}
	return 0
}

// isUnlinked reports whether an open file has no name any more.
func isUnlinked(f *os.File) bool {
	st, err := f.Stat()
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink == 0
}

// fillPattern fills b with words that make all pages different, so that nothing
// merges or compresses them.
func fillPattern(b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], patternWord(i))
	}
}

func patternWord(i int) uint64 {
	x := uint64(i) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// offsetZeroWriter writes at the beginning of a file.
type offsetZeroWriter struct{ f *os.File }

func (a offsetZeroWriter) Write(p []byte) (int, error) { return a.f.WriteAt(p, 0) }
