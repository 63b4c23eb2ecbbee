package client_test

import (
	"fmt"
	"io"
	"path"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
)

// The NameNode of the test bed allows blocks of 512 bytes, so that a file of many
// blocks can be small.
const tinyBlockBytes = 512

// manyBlocks creates a file of n blocks.
func manyBlocks(b *testing.B, c *client.Client, dir string, n int) string {
	b.Helper()
	name := path.Join(dir, fmt.Sprint(n))
	must(b, hdfs.WriteFile(b.Context(), c, name, make([]byte, n*tinyBlockBytes), hdfs.CreateOptions{Replication: 1, BlockSizeBytes: tinyBlockBytes}))
	return name
}

// BenchmarkLocations requests the locations of whole files from a real NameNode,
// without a cache.
func BenchmarkLocations(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			c, dir := newClient(b, client.Options{CacheBlocks: -1})
			name := manyBlocks(b, c, dir, n)
			b.ResetTimer()
			for b.Loop() {
				layout, err := c.Locations(b.Context(), name, 0, -1)
				must(b, err)
				if len(layout.Blocks) != n {
					b.Fatalf("%d blocks", len(layout.Blocks))
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
	b.Run("blocks=10000/remembered", func(b *testing.B) {
		c, dir := newClient(b, client.Options{})
		name := manyBlocks(b, c, dir, 10_000)
		b.ResetTimer()
		for b.Loop() {
			_, err := c.Locations(b.Context(), name, 0, -1)
			must(b, err)
		}
	})
	b.Run("blocks=1/parallel", func(b *testing.B) {
		c, dir := newClient(b, client.Options{CacheBlocks: -1})
		name := manyBlocks(b, c, dir, 1)
		b.ResetTimer()
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				_, err := c.Locations(b.Context(), name, 0, -1)
				must(b, err)
			}
		})
	})
}

func BenchmarkRead(b *testing.B) {
	c, dir := newClient(b, client.Options{})
	name := path.Join(dir, "file")
	const size = 64 * mib
	must(b, hdfs.WriteFile(b.Context(), c, name, randomBytes(size, 1), hdfs.CreateOptions{Replication: 1, BlockSizeBytes: 16 * mib}))
	b.SetBytes(size)
	b.ResetTimer()
	for b.Loop() {
		r, err := c.Open(b.Context(), name, 0, -1)
		must(b, err)
		_, err = io.Copy(io.Discard, r)
		must(b, err)
		must(b, r.Close())
	}
}

func BenchmarkWrite(b *testing.B) {
	c, dir := newClient(b, client.Options{})
	content := randomBytes(32*mib, 1)
	b.SetBytes(int64(len(content)))
	b.ResetTimer()
	for b.Loop() {
		must(b, hdfs.WriteFile(b.Context(), c, path.Join(dir, "file"), content,
			hdfs.CreateOptions{Replication: 1, BlockSizeBytes: 16 * mib, Overwrite: true}))
	}
}
