// Package bitrot damages the bytes of files as disks do. Only tests import it.
package bitrot

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

// page is the size in bytes of a unit that a disk loses at once.
const page = 4096

// Rounds returns how often a test damages something, and logs it: 10,000 times with DROVER_SOAK. A
// test whose round is slow divides the number by less.
func Rounds(t testing.TB, less int) int {
	n := 1000
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		n = 10_000
	case testing.Short():
		n = 200
	}
	t.Logf("%d rounds of damage", n/less)
	return n / less
}

// Damage changes a copy of a file, which must not be empty: it flips a bit, zeroes a page, cuts the
// file, or replaces a page by another one. It returns the copy and a description of the change. The
// copy may equal the file, for example if the chosen page was zero before.
func Damage(random *rand.Rand, file []byte) ([]byte, string) {
	b := bytes.Clone(file)
	pages := (len(b) + page - 1) / page
	at := func(k int) []byte { return b[k*page : min((k+1)*page, len(b))] }
	switch random.IntN(8) {
	case 0:
		k := random.IntN(pages)
		clear(at(k))
		return b, fmt.Sprintf("page %d zeroed", k)
	case 1:
		k := random.IntN(len(b))
		return b[:k], fmt.Sprintf("cut at %d", k)
	case 2:
		from, to := random.IntN(pages), random.IntN(pages)
		copy(at(to), bytes.Clone(at(from)))
		return b, fmt.Sprintf("page %d copied to %d", from, to)
	default:
		i := random.IntN(len(b))
		b[i] ^= 1 << random.IntN(8)
		return b, fmt.Sprintf("bit flipped at %d", i)
	}
}
