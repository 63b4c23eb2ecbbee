package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/testbed"
)

// These tests inject faults into a real HDFS, which needs the test bed:
//
//	go run ./integration/cmd/testbed hdfs -- go test ./hdfs/client

// cluster returns the HDFS of the test bed and restores it after the test.
func cluster(t *testing.T) *testbed.HDFS {
	t.Helper()
	b, err := testbed.FromEnv()
	if err != nil || b.HDFS == nil {
		t.Skip("not proved here: that reads and writes survive lost HDFS daemons; none can be stopped here: ", err)
	}
	t.Cleanup(func() {
		if err := b.HDFS.AwaitLive(context.WithoutCancel(t.Context()), len(b.HDFS.DataNodes), time.Minute); err != nil {
			t.Error(err)
		}
	})
	return b.HDFS
}

// stopDataNode stops DataNode k until the end of the test.
func stopDataNode(t *testing.T, h *testbed.HDFS, k int) {
	t.Helper()
	must(t, h.StopDataNode(t.Context(), k))
	startAtEnd(t, h, k)
}

// killDataNode kills DataNode k (kill -9), which is down until the end of the test.
func killDataNode(t *testing.T, h *testbed.HDFS, k int) {
	t.Helper()
	must(t, h.KillDataNode(t.Context(), k))
	startAtEnd(t, h, k)
}

func startAtEnd(t *testing.T, h *testbed.HDFS, k int) {
	t.Helper()
	t.Cleanup(func() {
		if err := h.StartDataNode(context.WithoutCancel(t.Context()), k); err != nil {
			t.Error(err)
		}
	})
}

// recorder records the events of a client.
type recorder struct {
	mu      sync.Mutex
	waiting []hdfs.WaitNotice
	failed  []string         // addresses
	read    map[string]int64 // bytes by address
	local   int64            // bytes

	shortCircuit int64   // bytes
	fallBacks    []error // of ShortCircuitFailed
}

func (r *recorder) events() client.Events {
	return client.Events{
		Waiting: func(w hdfs.WaitNotice) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.waiting = append(r.waiting, w)
		},
		ReplicaFailed: func(_ string, _ uint64, address string, _ error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed = append(r.failed, address)
		},
		ShortCircuitFailed: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.fallBacks = append(r.fallBacks, err)
		},
		Read: func(e client.ReadEvent) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.read == nil {
				r.read = map[string]int64{}
			}
			r.read[e.Replica.IP] += e.Bytes
			if e.Local {
				r.local += e.Bytes
			}
			if e.ShortCircuit {
				r.shortCircuit += e.Bytes
			}
		},
	}
}

// waitedFor reports whether a wait for the reason was recorded.
func (r *recorder) waitedFor(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiting {
		if strings.Contains(w.Reason, reason) {
			return true
		}
	}
	return false
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	// On a busy machine HDFS takes long to have all replicas.
	err := testbed.WaitFor(t.Context(), 2*time.Minute, what, func(context.Context) error {
		if condition() {
			return nil
		}
		return errors.New("not yet")
	})
	must(t, err)
}

func TestReadsAndLocatesFileWrittenByJava(t *testing.T) {
	h := cluster(t)
	c, dir := newClient(t, client.Options{})
	want := randomBytes(4*mib+5, 1)
	local := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(local, want, 0o644))
	name := path.Join(dir, "file")
	must(t, h.Load(t.Context(), local, name, mib, 1, 1, 2, 3, 3))
	wantFile(t, c, name, want)
	layout, err := c.Locations(t.Context(), name, 0, -1)
	must(t, err)
	for i, k := range []int{1, 1, 2, 3, 3} {
		node, got := h.DataNodes[k-1], layout.Blocks[i].Replicas
		if len(got) != 1 || got[0].IP != node.IP || got[0].Rack != node.Rack {
			t.Errorf("block %d is at %+v, want %+v", i, got, node)
		}
	}
}

func TestReadFailsOverFromLocalReplica(t *testing.T) {
	h := cluster(t)
	var rec recorder
	c, dir := newClient(t, client.Options{LocalAddresses: []string{h.DataNodes[1].IP}, Events: rec.events()})
	name, want := path.Join(dir, "file"), randomBytes(16*mib, 1)
	must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{Replication: 3, BlockSizeBytes: 8 * mib}))
	await(t, "all replicas to be reported to the NameNode", func() bool {
		c.Forget(name)
		layout, err := c.Locations(t.Context(), name, 0, -1)
		must(t, err)
		return !slices.ContainsFunc(layout.Blocks, func(b hdfs.Block) bool { return len(b.Replicas) < 3 })
	})

	wantFile(t, c, name, want)
	if rec.local != int64(len(want)) || rec.read[h.DataNodes[1].IP] != int64(len(want)) {
		t.Errorf("read by DataNode: %v, locally %d of %d bytes", rec.read, rec.local, len(want))
	}
	// The local DataNode is killed in the middle of the first block.
	r, err := c.Open(t.Context(), name, 0, -1)
	must(t, err)
	defer r.Close()
	got := make([]byte, len(want))
	_, err = io.ReadFull(r, got[:100_000])
	must(t, err)
	killDataNode(t, h, 2)
	_, err = io.ReadFull(r, got[100_000:])
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("other bytes after the failover")
	}
	if len(rec.failed) == 0 || !strings.HasPrefix(rec.failed[0], h.DataNodes[1].IP+":") {
		t.Errorf("failed: %v", rec.failed)
	}
}

func TestMissingBlockIsNamed(t *testing.T) {
	h := cluster(t)
	var rec recorder
	c, dir := newClient(t, client.Options{MissingWait: 500 * time.Millisecond, Events: rec.events()})
	local, name := filepath.Join(t.TempDir(), "file"), path.Join(dir, "file")
	must(t, os.WriteFile(local, randomBytes(3*mib, 1), 0o644))
	must(t, h.Load(t.Context(), local, name, mib, 1, 2, 3))
	layout, err := c.Locations(t.Context(), name, 0, -1)
	must(t, err)
	must(t, h.KillDataNode(t.Context(), 2))
	restart := sync.OnceValue(func() error { return h.StartDataNode(context.WithoutCancel(t.Context()), 2) })
	defer restart()

	check := func(when string, err error) {
		t.Helper()
		if err == nil {
			t.Fatalf("%s: no error", when)
		}
		var missing *hdfs.BlockMissingError
		if !errors.As(err, &missing) || missing.Path != name || missing.BlockID != layout.Blocks[1].ID || missing.OffsetBytes != mib {
			t.Errorf("%s: %v", when, err)
		}
		for _, part := range []string{name, fmt.Sprint(layout.Blocks[1].ID), fmt.Sprint(mib)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not name %s", when, err, part)
			}
		}
		t.Logf("%s: %v", when, err)
	}
	_, err = hdfs.ReadFile(t.Context(), c, name, 1<<30)
	check("before the NameNode knows", err)
	if !rec.waitedFor("no DataNode serves block") {
		t.Errorf("events %v", rec.waiting)
	}
	if testing.Short() {
		return
	}
	// Forgetting the DataNode drops the cached location.
	await(t, "the NameNode to drop the DataNode's blocks", func() bool {
		c.ForgetDataNode(h.DataNodes[1].IP)
		layout, err = c.Locations(t.Context(), name, 0, -1)
		return err != nil || layout.Err() != nil
	})
	must(t, err)
	check("the layout", layout.Err())
	if len(layout.Blocks) != 3 {
		t.Errorf("%d blocks", len(layout.Blocks))
	}
	_, err = hdfs.ReadFile(t.Context(), c, name, 1<<30)
	check("when the NameNode knows", err)
	// A waiting reader continues once the DataNode is back with the content of its disk.
	patient, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root", MissingWait: time.Minute})
	must(t, err)
	defer patient.Close()
	done := make(chan error, 1)
	go func() {
		_, err := hdfs.ReadFile(t.Context(), patient, name, 1<<30)
		done <- err
	}()
	must(t, restart())
	must(t, <-done)
}

func TestCallsSurviveNameNodeRestart(t *testing.T) {
	h := cluster(t)
	var rec recorder
	c, dir := newClient(t, client.Options{Events: rec.events(), CacheBlocks: -1})
	name, want := path.Join(dir, "file"), randomBytes(4*mib, 1)
	must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{BlockSizeBytes: mib, Replication: 2}))
	must(t, h.StopNameNode(t.Context()))

	// A client that must not wait fails at once.
	hasty, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root", WaitLimit: -1})
	must(t, err)
	defer hasty.Close()
	_, err = hasty.Stat(t.Context(), name)
	wantClass(t, hdfs.ErrUnavailable, err)
	t.Log(err)

	results := make(chan error, 4)
	go func() {
		got, err := hdfs.ReadFile(t.Context(), c, name, 1<<30)
		if err == nil && !bytes.Equal(got, want) {
			err = errors.New("other bytes after the restart")
		}
		results <- err
	}()
	go func() { _, err := c.Locations(t.Context(), name, 0, -1); results <- err }()
	go func() { results <- c.Rename(t.Context(), name, name+".moved") }()
	go func() { results <- hdfs.WriteFile(t.Context(), c, path.Join(dir, "new"), want, hdfs.CreateOptions{}) }()
	await(t, "the client to say that it waits", func() bool { return rec.waitedFor("connection refused") })
	rec.mu.Lock()
	t.Log(rec.waiting[0])
	rec.mu.Unlock()
	must(t, h.StartNameNode(t.Context()))
	moved := 0
	for range cap(results) {
		// The read races with the rename, which may happen first.
		if err := <-results; errors.Is(err, hdfs.ErrNotExist) {
			moved++
		} else if err != nil {
			t.Error(err)
		}
	}
	if moved > 2 {
		t.Error("the rename itself did not find the file")
	}
	wantFile(t, c, name+".moved", want)
	wantFile(t, c, path.Join(dir, "new"), want)
}

// Changes that a NameNode acknowledged exist exactly once after it was killed during a commit. The
// commit continues when the NameNode is back, and so does the writer of a file.
func TestChangesSurviveKilledNameNode(t *testing.T) {
	h := cluster(t)
	c, dir := newClient(t, client.Options{WaitLimit: 2 * time.Minute})
	open, want := path.Join(dir, "open"), randomBytes(4*mib, 1)
	w, err := c.Create(t.Context(), open, hdfs.CreateOptions{BlockSizeBytes: mib, Replication: 2})
	must(t, err)
	half := mib + mib/2 // a whole block and a part of the next
	_, err = w.Write(want[:half])
	must(t, err)

	from, to := path.Join(dir, "from"), path.Join(dir, "to")
	must(t, c.Mkdir(t.Context(), from))
	must(t, c.Mkdir(t.Context(), to))
	const files, before = 40, 5
	name := func(i int) string { return fmt.Sprintf("part-%05d", i) }
	var renamed atomic.Int64
	done := make(chan error, 1)
	go func() {
		for i := range files {
			err := hdfs.WriteFile(t.Context(), c, path.Join(from, name(i)), []byte(name(i)), hdfs.CreateOptions{})
			if err == nil {
				err = c.Rename(t.Context(), path.Join(from, name(i)), path.Join(to, name(i)))
			}
			if err != nil {
				done <- err
				return
			}
			renamed.Add(1)
		}
		done <- nil
	}()
	await(t, "the first renames", func() bool { return renamed.Load() >= before })
	must(t, h.KillNameNode(t.Context()))
	t.Logf("killed with %d of %d files renamed", renamed.Load(), files)
	must(t, h.StartNameNode(t.Context()))
	_, err = w.Write(want[half:])
	must(t, err)
	must(t, w.Commit())
	must(t, <-done)

	wantFile(t, c, open, want)
	left, err := c.List(t.Context(), from)
	must(t, err)
	there, err := c.List(t.Context(), to)
	must(t, err)
	if len(left) != 0 || len(there) != files {
		t.Errorf("%d files are renamed, and these are not: %v", len(there), left)
	}
	for i := range files {
		wantFile(t, c, path.Join(to, name(i)), []byte(name(i)))
	}
}

func TestCallsWaitForSafeModeToEnd(t *testing.T) {
	h := cluster(t)
	var rec recorder
	c, dir := newClient(t, client.Options{Events: rec.events()})
	must(t, hdfs.WriteFile(t.Context(), c, path.Join(dir, "file"), randomBytes(mib, 1), hdfs.CreateOptions{Replication: 1}))
	// A NameNode whose DataNodes do not report stays in safe mode.
	for k := range h.DataNodes {
		must(t, h.StopDataNode(t.Context(), k+1))
	}
	must(t, h.StopNameNode(t.Context()))
	restarted := make(chan error, 1)
	go func() { restarted <- h.StartNameNode(t.Context()) }()
	done := make(chan error, 2)
	go func() { done <- c.Mkdir(t.Context(), path.Join(dir, "made")) }()
	go func() {
		done <- hdfs.WriteFile(t.Context(), c, path.Join(dir, "new"), randomBytes(mib, 2), hdfs.CreateOptions{})
	}()
	await(t, "a wait for safe mode", func() bool { return rec.waitedFor("safe mode") })

	hasty, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root", WaitLimit: -1})
	must(t, err)
	defer hasty.Close()
	err = hasty.Mkdir(t.Context(), path.Join(dir, "other"))
	wantClass(t, hdfs.ErrSafeMode, err)
	t.Log(err)
	_, err = hasty.Stat(t.Context(), path.Join(dir, "file"))
	must(t, err)

	for k := range h.DataNodes {
		must(t, h.StartDataNode(t.Context(), k+1))
	}
	must(t, <-restarted)
	must(t, <-done)
	must(t, <-done)
	wantFile(t, c, path.Join(dir, "new"), randomBytes(mib, 2))
}

func TestDeadDataNodeIsExcludedFromPipelines(t *testing.T) {
	h := cluster(t)
	var rec recorder
	c, dir := newClient(t, client.Options{Events: rec.events()})
	stopDataNode(t, h, 3) // the only node of its rack: every pipeline of two nodes includes it
	name, want := path.Join(dir, "file"), randomBytes(6*mib, 1)
	must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{Replication: 2, BlockSizeBytes: mib}))
	wantFile(t, c, name, want)
	t.Logf("%d pipelines met the dead DataNode", len(rec.failed))
	for _, address := range rec.failed {
		if !strings.HasPrefix(address, h.DataNodes[2].IP+":") {
			t.Errorf("%s was blamed", address)
		}
	}
}

func TestUploadRetriesAfterPipelineFailure(t *testing.T) {
	h := cluster(t)
	c, dir := newClient(t, client.Options{})
	name, want := path.Join(dir, "file"), randomBytes(24*mib, 1)
	var failures []error
	attempts := 0
	options := hdfs.UploadOptions{
		CreateOptions: hdfs.CreateOptions{Replication: 3, BlockSizeBytes: 32 * mib},
		OnRetry:       func(_ int, err error) { failures = append(failures, err) },
	}
	n, err := hdfs.Upload(t.Context(), c, name, options, func() (io.ReadCloser, error) {
		attempts++
		if attempts > 1 {
			return io.NopCloser(bytes.NewReader(want)), nil
		}
		// One of the three DataNodes of the only block is killed in its middle.
		kill := &hookReader{r: bytes.NewReader(want), offset: 10 * mib, hook: func() { killDataNode(t, h, 2) }}
		return io.NopCloser(kill), nil
	})
	must(t, err)
	if n != int64(len(want)) || attempts < 2 || len(failures) != attempts-1 {
		t.Errorf("%d bytes, %d attempts, %v", n, attempts, failures)
	}
	for _, err := range failures {
		wantClass(t, hdfs.ErrUnavailable, err)
		t.Log(err)
	}
	wantFile(t, c, name, want)
}

// hookReader calls hook once, before it returns the byte at offset.
type hookReader struct {
	r      io.Reader
	offset int
	hook   func()
}

func (a *hookReader) Read(b []byte) (int, error) {
	n, err := a.r.Read(b[:min(len(b), 64<<10)])
	if a.offset -= n; a.offset <= 0 && a.hook != nil {
		a.hook()
		a.hook = nil
	}
	return n, err
}

func TestContextEndsCallsToHungCluster(t *testing.T) {
	h := cluster(t)
	c, dir := newClient(t, client.Options{})
	name := path.Join(dir, "file")
	must(t, hdfs.WriteFile(t.Context(), c, name, randomBytes(mib, 1), hdfs.CreateOptions{}))
	r, err := c.Open(t.Context(), name, 0, -1)
	must(t, err)
	defer r.Close()
	must(t, h.Pause(t.Context()))
	defer func() { must(t, h.Continue(context.WithoutCancel(t.Context()))) }()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = c.Stat(ctx, name)
	wantClass(t, context.DeadlineExceeded, err)
	impatient, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root", WaitLimit: -1, CallTimeout: 300 * time.Millisecond})
	must(t, err)
	defer impatient.Close()
	_, err = impatient.Stat(t.Context(), name)
	wantClass(t, hdfs.ErrUnavailable, err)
	t.Log(err)
}
