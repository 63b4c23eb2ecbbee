package sortmerge

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/drover-run/drover/mapreduce"
)

// benchLines returns 100-byte records with 10-byte keys, as sort benchmarks use.
func benchLines(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n*100)
	for i := range n {
		rec := b[i*100:]
		for k := range 10 {
			rec[k] = byte(' ' + 1 + r.IntN(94))
		}
		binary.LittleEndian.PutUint64(rec[10:], r.Uint64())
	}
	return b
}

// BenchmarkPartitionSortSpill partitions, sorts and writes 256 MB of 100-byte
// records through 64 MiB of memory, up to the segments on disk.
func BenchmarkPartitionSortSpill(b *testing.B) {
	for _, parts := range []int{1, 16} {
		b.Run("parts="+strconv.Itoa(parts), func(b *testing.B) {
			const records = 2_560_000
			lines := benchLines(records / 10)
			b.SetBytes(records * 100)
			for b.Loop() {
				c := NewCollector(Options{Parts: parts, Dir: b.TempDir(), FanIn: 32, Memory: 64 << 20})
				for range 10 {
					for at := 0; at < len(lines); at += 100 {
						r := Record{Key: lines[at : at+10], Value: lines[at+10 : at+100]}
						if err := c.Add(mapreduce.Partition(r.Key, parts), r); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := c.spill(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMerge merges segments on disk into one file.
func BenchmarkMerge(b *testing.B) {
	for _, fan := range []int{4, 16} {
		b.Run("segments="+strconv.Itoa(fan), func(b *testing.B) {
			const records = 1_280_000
			dir := b.TempDir()
			lines := benchLines(records)
			var segments []Segment
			for i := range fan {
				c := NewCollector(Options{Parts: 1, Dir: dir, FanIn: 32, Memory: 256 << 20})
				part := lines[i*len(lines)/fan : (i+1)*len(lines)/fan]
				for at := 0; at+100 <= len(part); at += 100 {
					if err := c.Add(0, Record{Key: part[at : at+10], Value: part[at+10 : at+100]}); err != nil {
						b.Fatal(err)
					}
				}
				path := filepath.Join(dir, fmt.Sprint("segment", i))
				x, err := c.Finish(path, mapreduce.CodecNone)
				if err != nil {
					b.Fatal(err)
				}
				segments = append(segments, Segment{Path: path, Index: *x})
			}
			b.SetBytes(records * 100)
			for b.Loop() {
				g := ExternalMerge{Dir: dir, NamePrefix: "m", FanIn: fan, Memory: 64 << 20}
				if _, err := g.mergeToFile(segments, filepath.Join(dir, "out"), mapreduce.CodecNone); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
