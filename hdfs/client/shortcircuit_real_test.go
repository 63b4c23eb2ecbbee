package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/testbed"
)

// shortCircuitCluster returns an HDFS whose DataNodes have domain sockets.
func shortCircuitCluster(t *testing.T) *testbed.HDFS {
	t.Helper()
	h := cluster(t)
	if h.DataNodes[0].Socket == "" {
		t.Skip("not proved here: short-circuit reads from a real DataNode; this test bed's have no domain sockets (testbed hdfs, as root, in a folder that only root can change, on a processor for which Hadoop's native library is published)")
	}
	return h
}

// onDataNode1 returns options of a client on the machine of DataNode 1.
func onDataNode1(h *testbed.HDFS, rec *recorder) client.Options {
	return client.Options{LocalAddresses: []string{h.DataNodes[0].IP}, DomainSocket: h.DataNodes[0].Socket, Events: rec.events(), MissingWait: 500 * time.Millisecond}
}

// loadBlocks writes a file of one replica in blocks of 1 MiB, with block i on DataNode places[i].
func loadBlocks(t *testing.T, h *testbed.HDFS, name string, want []byte, places ...int) {
	t.Helper()
	local := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(local, want, 0o644))
	must(t, h.Load(t.Context(), local, name, mib, places...))
}

// blockFile returns the path of a block on DataNode 1. suffix is "" for its data, "_*.meta" for its
// meta file.
func blockFile(t *testing.T, h *testbed.HDFS, id uint64, suffix string) string {
	t.Helper()
	name, found := fmt.Sprintf("blk_%d%s", id, suffix), ""
	must(t, filepath.WalkDir(h.DataNodes[0].Folder, func(p string, _ fs.DirEntry, err error) error {
		if ok, _ := filepath.Match(name, filepath.Base(p)); ok {
			found = p
		}
		return err
	}))
	if found == "" {
		t.Fatalf("DataNode 1 has no file %s", name)
	}
	return found
}

// flip damages one byte of a file.
func flip(t *testing.T, file string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, offset)
	must(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, offset)
	must(t, err)
	must(t, f.Close())
}

func TestShortCircuitReadsEqualBytes(t *testing.T) {
	h := shortCircuitCluster(t)
	var rec recorder
	c, dir := newClient(t, onDataNode1(h, &rec))
	name, want := path.Join(dir, "file"), randomBytes(4*mib+5, 1)
	loadBlocks(t, h, name, want, 1, 1, 2, 1, 1)
	wantFile(t, c, name, want)
	if local := int64(len(want) - mib); rec.shortCircuit != local || rec.local != local || len(rec.fallBacks) > 0 {
		t.Errorf("%d bytes by short circuit, %d locally, of %d; %v", rec.shortCircuit, rec.local, local, rec.fallBacks)
	}
	for _, r := range []struct{ offset, length int64 }{{0, 1}, {511, 2}, {mib - 1, 2}, {mib / 2, mib}, {4*mib + 4, 1}} {
		in, err := c.Open(t.Context(), name, r.offset, r.length)
		must(t, err)
		got, err := io.ReadAll(in)
		must(t, errors.Join(err, in.Close()))
		if !bytes.Equal(got, want[r.offset:r.offset+r.length]) {
			t.Errorf("%+v: other bytes", r)
		}
	}
}

// A damaged local replica is read from another DataNode, or named in an error.
func TestShortCircuitDetectsDamage(t *testing.T) {
	h := shortCircuitCluster(t)
	for what, damage := range map[string]func(id uint64){
		"data":      func(id uint64) { flip(t, blockFile(t, h, id, ""), 700_000) },
		"checksums": func(id uint64) { flip(t, blockFile(t, h, id, "_*.meta"), 7+4*1300) },
		"length":    func(id uint64) { must(t, os.Truncate(blockFile(t, h, id, ""), 700_000)) },
		"header":    func(id uint64) { flip(t, blockFile(t, h, id, "_*.meta"), 5) },
	} {
		t.Run(what, func(t *testing.T) {
			var rec recorder
			c, dir := newClient(t, onDataNode1(h, &rec))
			// 1. One replica of three is damaged.
			name, want := path.Join(dir, "three"), randomBytes(mib, 2)
			must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{Replication: 3, BlockSizeBytes: mib}))
			var layout hdfs.Layout
			await(t, "three replicas", func() bool {
				c.Forget(name)
				var err error
				layout, err = c.Locations(t.Context(), name, 0, -1)
				must(t, err)
				return len(layout.Blocks[0].Replicas) == 3
			})
			damage(layout.Blocks[0].ID)
			wantFile(t, c, name, want)
			if len(rec.failed) != 1 || !strings.HasPrefix(rec.failed[0], h.DataNodes[0].IP+":") || len(rec.fallBacks) > 0 {
				t.Errorf("failed: %v; fell back: %v", rec.failed, rec.fallBacks)
			}
			// 2. The only one is.
			name = path.Join(dir, "one")
			loadBlocks(t, h, name, want, 1)
			layout, err := c.Locations(t.Context(), name, 0, -1)
			must(t, err)
			damage(layout.Blocks[0].ID)
			_, err = hdfs.ReadFile(t.Context(), c, name, mib)
			if missing := (*hdfs.BlockMissingError)(nil); !errors.As(err, &missing) || missing.BlockID != layout.Blocks[0].ID {
				t.Errorf("%v, want an error that names block %d", err, layout.Blocks[0].ID)
			}
		})
	}
}

// A DataNode that has lost the meta file passes no files and serves nothing over TCP.
func TestShortCircuitWithoutMetaFile(t *testing.T) {
	h := shortCircuitCluster(t)
	var rec recorder
	c, dir := newClient(t, onDataNode1(h, &rec))
	name, want := path.Join(dir, "file"), randomBytes(mib, 3)
	must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{Replication: 3, BlockSizeBytes: mib}))
	layout, err := c.Locations(t.Context(), name, 0, -1)
	must(t, err)
	must(t, os.Remove(blockFile(t, h, layout.Blocks[0].ID, "_*.meta")))
	await(t, "another replica", func() bool {
		c.Forget(name)
		layout, err = c.Locations(t.Context(), name, 0, -1)
		must(t, err)
		return slices.ContainsFunc(layout.Blocks[0].Replicas, func(r hdfs.Replica) bool { return r.IP != h.DataNodes[0].IP })
	})
	wantFile(t, c, name, want)
	if rec.shortCircuit != 0 || len(rec.fallBacks) != 1 {
		t.Errorf("%d bytes by short circuit; %v", rec.shortCircuit, rec.fallBacks)
	}
}

// The complete blocks of a file that is being written are read from their files, and so is a file to
// which another client appends while it is read.
func TestShortCircuitOfFileBeingWritten(t *testing.T) {
	h := shortCircuitCluster(t)
	var rec recorder
	c, dir := newClient(t, onDataNode1(h, &rec))
	name, want := path.Join(dir, "file"), randomBytes(3*mib, 4)
	w, err := c.Create(t.Context(), name, hdfs.CreateOptions{BlockSizeBytes: mib, Replication: 3})
	must(t, err)
	_, err = w.Write(want[:2*mib+mib/2])
	must(t, err)
	r, err := c.Open(t.Context(), name, 0, -1)
	must(t, err)
	got, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()))
	if !bytes.Equal(got, want[:len(got)]) || rec.shortCircuit != int64(len(got)) {
		t.Errorf("%d bytes, %d by short circuit, or other ones", len(got), rec.shortCircuit)
	}
	_, err = w.Write(want[2*mib+mib/2 : 3*mib-100])
	must(t, err)
	must(t, w.Commit())
	wantFile(t, c, name, want[:3*mib-100])

	opened, err := c.Open(t.Context(), name, 0, -1) // the locations are known from here on
	must(t, err)
	more, err := newColinmarc(t).Append(name)
	must(t, err)
	_, err = more.Write(want[3*mib-100 : 3*mib-50])
	must(t, errors.Join(err, more.Flush()))
	got, err = io.ReadAll(opened)
	must(t, errors.Join(err, opened.Close()))
	if !bytes.Equal(got, want[:3*mib-100]) {
		t.Errorf("%d bytes, or other ones", len(got))
	}
	must(t, more.Close())
	c.Forget(name)
	wantFile(t, c, name, want[:3*mib-50])
	if len(rec.failed) > 0 {
		t.Errorf("replicas failed: %v", rec.failed)
	}
}

// The files that a DataNode passed are read to their end after its death.
func TestShortCircuitOutlivesTheDataNode(t *testing.T) {
	h := shortCircuitCluster(t)
	var rec recorder
	c, dir := newClient(t, onDataNode1(h, &rec))
	name, want := path.Join(dir, "file"), randomBytes(16*mib, 5)
	local := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(local, want, 0o644))
	must(t, h.Load(t.Context(), local, name, 16*mib, 1))
	r, err := c.Open(t.Context(), name, 0, -1)
	must(t, err)
	defer r.Close()
	got := make([]byte, len(want))
	_, err = io.ReadFull(r, got[:100_000])
	must(t, err)
	killDataNode(t, h, 1)
	_, err = io.ReadFull(r, got[100_000:])
	must(t, errors.Join(err, r.Close()))
	if !bytes.Equal(got, want) || rec.shortCircuit != int64(len(want)) {
		t.Errorf("%d bytes by short circuit, or other ones", rec.shortCircuit)
	}
}

func TestShortCircuitWithoutSocket(t *testing.T) {
	h := shortCircuitCluster(t)
	for what, socket := range map[string]string{"absent": h.DataNodes[0].Socket + "x", "of another DataNode": h.DataNodes[1].Socket} {
		var rec recorder
		o := onDataNode1(h, &rec)
		o.DomainSocket = socket
		c, dir := newClient(t, o)
		name, want := path.Join(dir, "file"), randomBytes(3*mib, 6)
		loadBlocks(t, h, name, want, 1)
		wantFile(t, c, name, want)
		if rec.shortCircuit != 0 || rec.local != int64(len(want)) || len(rec.fallBacks) != 1 || len(rec.failed) > 0 {
			t.Errorf("%s: %d bytes by short circuit, %d locally; fell back: %v; failed: %v", what, rec.shortCircuit, rec.local, rec.fallBacks, rec.failed)
		}
	}
}
