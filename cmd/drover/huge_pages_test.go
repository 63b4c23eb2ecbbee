//go:build !race

package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// What is allocated after the advice lies where it was given, and the advice itself uses no memory.
func TestHeapLiesOnHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		t.Skip("not proved here: that the heap lies on huge pages; this kernel has none")
	}
	before := residentBytes()
	adviseHugePages()
	if after := residentBytes(); after > before+(32<<20) {
		t.Errorf("the advice made the process grow from %d to %d MiB", before>>20, after>>20)
	}
	var kept [][]byte // other tests may have left free memory below
	for len(kept) < 8 {
		b := make([]byte, 32<<20)
		if slices.Contains(mappingFlags(t, fmt.Sprintf("%p", b)), "hg") {
			return
		}
		kept = append(kept, b)
	}
	t.Errorf("%d slices of 32 MiB lie where the kernel was not asked for huge pages", len(kept))
}

// mappingFlags returns the kernel's flags of the mapping with an address.
func mappingFlags(t *testing.T, address string) []string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var at, from, to uint64
	if _, err := fmt.Sscanf(address, "0x%x", &at); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if flags, found := strings.CutPrefix(lines.Text(), "VmFlags:"); found && from <= at && at < to {
			return strings.Fields(flags)
		}
		_, _ = fmt.Sscanf(lines.Text(), "%x-%x", &from, &to) // other lines leave them as they are
	}
	t.Fatalf("no mapping has the address %s", address)
	return nil
}
