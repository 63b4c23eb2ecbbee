package sortmerge

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

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

// textRecords returns encoded records as a map of a log writes them, and their bytes.
func textRecords(n int) (records [][]byte, size int64) {
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 5000)
	for i := range words {
		for range 3 + r.IntN(8) {
			words[i] += string(rune('a' + r.IntN(26)))
		}
	}
	zipf := rand.NewZipf(r, 1.1, 4, uint64(len(words)-1))
	keys := make([]string, n)
	for i := range keys {
		keys[i] = words[zipf.Uint64()] + "/" + strconv.Itoa(r.IntN(1_000_000))
	}
	slices.Sort(keys)
	for _, key := range keys {
		value := strconv.Itoa(r.IntN(1 << 30))
		for range 8 {
			value += " " + words[zipf.Uint64()]
		}
		var head [maxHeaderBytes]byte
		rec := Record{Key: []byte(key), Value: []byte(value)}
		b := append(append(head[:putHeader(head[:], rec)], rec.Key...), rec.Value...)
		records, size = append(records, b), size+int64(len(b))
	}
	return records, size
}

// cpuTime returns the processor time of this process so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports the MB that the loop of b processed in each second of processor time, which
// unlike the time on the clock does not depend on what else runs.
func reportCPU(b *testing.B, size int64, since time.Duration) {
	b.ReportMetric(float64(size)*float64(b.N)/1e6/(cpuTime(b)-since).Seconds(), "MB/cpu-s")
}

// BenchmarkWriteText writes sorted text-like records plain and compressed, and reports how many
// bytes become one. node.compressBytesPerS and node.compressRatio come from it.
func BenchmarkWriteText(b *testing.B) {
	records, size := textRecords(500_000)
	for _, codec := range []mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd} {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "out")
			b.SetBytes(size)
			stored, start := int64(1), cpuTime(b)
			for b.Loop() {
				w, err := createSegment(path, codec, maxBufferBytes)
				if err != nil {
					b.Fatal(err)
				}
				for _, rec := range records {
					if err := w.addRecord(rec); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.endPart(); err != nil {
					b.Fatal(err)
				}
				index, err := w.close()
				if err != nil {
					b.Fatal(err)
				}
				stored = index.Parts[0].Length
			}
			reportCPU(b, size, start)
			b.ReportMetric(float64(size)/float64(stored), "ratio")
		})
	}
}

// BenchmarkMergeText merges 16 segments of text-like records, plain and compressed.
func BenchmarkMergeText(b *testing.B) {
	records, size := textRecords(500_000)
	const fan = 16
	for _, codec := range []mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd} {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			dir := b.TempDir()
			var segments []Segment
			for i := range fan {
				path := filepath.Join(dir, fmt.Sprint("segment", i))
				w, err := createSegment(path, codec, maxBufferBytes)
				if err != nil {
					b.Fatal(err)
				}
				for k := i; k < len(records); k += fan {
					if err := w.addRecord(records[k]); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.endPart(); err != nil {
					b.Fatal(err)
				}
				x, err := w.close()
				if err != nil {
					b.Fatal(err)
				}
				segments = append(segments, Segment{Path: path, Index: *x})
			}
			b.SetBytes(size)
			start := cpuTime(b)
			for b.Loop() {
				g := ExternalMerge{Dir: dir, NamePrefix: "m", FanIn: fan, Memory: 64 << 20}
				if _, err := g.mergeToFile(segments, filepath.Join(dir, "out"), mapreduce.CodecNone); err != nil {
					b.Fatal(err)
				}
			}
			reportCPU(b, size, start)
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
