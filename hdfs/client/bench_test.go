package client_test

import (
	"fmt"
	"io"
	"os"
	"path"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/testbed"
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

// BenchmarkLocalRead reads a file from a DataNode of this machine, over TCP and by short circuit, with
// the CPU time of both sides. The client's includes what the benchmark itself needs.
func BenchmarkLocalRead(b *testing.B) {
	bed, err := testbed.FromEnv()
	if err != nil || bed.HDFS == nil || bed.HDFS.DataNodes[0].Socket == "" {
		b.Skip("not proved here: what a short-circuit read costs; there is no DataNode with a domain socket: ", err)
	}
	h := bed.HDFS
	const size, blockSize = 256 * mib, 128 * mib
	local := path.Join(b.TempDir(), "file")
	must(b, os.WriteFile(local, randomBytes(size, 1), 0o600))
	c, dir := newClient(b, client.Options{})
	name := path.Join(dir, "file")
	must(b, h.Load(b.Context(), local, name, blockSize, 1))
	must(b, c.Close())
	for _, how := range []struct{ name, socket string }{{"tcp", ""}, {"short-circuit", h.DataNodes[0].Socket}} {
		b.Run(how.name, func(b *testing.B) {
			c, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root", LocalAddresses: []string{h.DataNodes[0].IP}, DomainSocket: how.socket,
				Events: client.Events{ShortCircuitFailed: func(err error) { b.Error(err) }}})
			must(b, err)
			defer c.Close()
			buffer := make([]byte, 256<<10)
			dataNode, err := h.DataNodeCPU(1)
			must(b, err)
			self := ownCPU(b)
			b.SetBytes(size)
			for b.Loop() {
				r, err := c.Open(b.Context(), name, 0, -1)
				must(b, err)
				_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buffer)
				must(b, err)
				must(b, r.Close())
			}
			end, err := h.DataNodeCPU(1)
			must(b, err)
			gb := float64(size) * float64(b.N) / 1e9
			b.ReportMetric((ownCPU(b)-self).Seconds()/gb, "client-CPU-s/GB")
			b.ReportMetric((end-dataNode).Seconds()/gb, "DataNode-CPU-s/GB")
		})
	}
}

// ownCPU returns the CPU time of this process.
func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
