package fake_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/hdfs/hdfstest"
)

func TestConformance(t *testing.T) {
	hdfstest.Run(t, fake.New(fake.Options{BlockBytes: hdfstest.BlockBytes}), hdfstest.Options{Dir: "/", Replication: 2})
}

func write(t *testing.T, f *fake.FS, name string, n int, options hdfs.CreateOptions) {
	t.Helper()
	if err := hdfs.WriteFile(t.Context(), f, name, make([]byte, n), options); err != nil {
		t.Fatal(err)
	}
}

func TestBlocksAreSpreadRoundRobin(t *testing.T) {
	f := fake.New(fake.Options{Hosts: fake.Hosts(3, 2), BlockBytes: 100})
	write(t, f, "/file", 400, hdfs.CreateOptions{Replication: 2})
	layout, err := f.Locations(t.Context(), "/file", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, b := range layout.Blocks {
		var hosts []string
		for _, r := range b.Replicas {
			hosts = append(hosts, r.Host+r.Rack)
		}
		got = append(got, hosts)
	}
	want := [][]string{
		{"node1/rack1", "node2/rack2"}, {"node2/rack2", "node3/rack1"},
		{"node3/rack1", "node1/rack1"}, {"node1/rack1", "node2/rack2"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("placement (-want +got):\n%s", diff)
	}
}

func TestLocalReplicaIsPreferred(t *testing.T) {
	f := fake.New(fake.Options{Hosts: fake.Hosts(3, 1), BlockBytes: 100, LocalIP: "10.0.0.3"})
	write(t, f, "/file", 200, hdfs.CreateOptions{Replication: 2})
	read := func() error {
		_, err := hdfs.ReadFile(t.Context(), f, "/file", 1000)
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"10.0.0.3": 200}, f.Served()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	f.StopDataNode("10.0.0.3")
	if err := read(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"10.0.0.1": 100, "10.0.0.2": 100, "10.0.0.3": 200}, f.Served()); diff != "" {
		t.Errorf("served (-want +got):\n%s", diff)
	}
	f.StopDataNode("10.0.0.2")
	var missing *hdfs.BlockMissingError
	if err := read(); !errors.As(err, &missing) || missing.Path != "/file" || missing.OffsetBytes != 100 || missing.BlockID == 0 {
		t.Errorf("read with one block lost: %v", err)
	}
	f.StartDataNode("10.0.0.2")
	if err := read(); err != nil {
		t.Error(err)
	}
	f.SetReplicas("/file", 0)
	layout, err := f.Locations(t.Context(), "/file", 0, -1)
	if err != nil || !errors.Is(layout.Err(), hdfs.ErrBlockMissing) {
		t.Errorf("layout with a lost block: %v, %v", err, layout.Err())
	}
	f.SetReplicas("/file", 0, fake.Hosts(1, 1)...)
	f.SetCorrupt("/file", 1)
	if err := read(); !errors.As(err, &missing) || !missing.Corrupt || missing.OffsetBytes != 100 {
		t.Errorf("read with a damaged block: %v", err)
	}
}

func TestFaults(t *testing.T) {
	f := fake.New(fake.Options{})
	boom := errors.New("boom")
	write(t, f, "/file", 10, hdfs.CreateOptions{})
	f.FailNth(fake.OpStat, 2, boom)
	for i, want := range []error{nil, boom, nil} {
		if _, err := f.Stat(t.Context(), "/file"); !errors.Is(err, want) {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
	}
	f.SetSafeMode(true)
	if err := f.Mkdir(t.Context(), "/dir"); !errors.Is(err, hdfs.ErrSafeMode) || !hdfs.Retryable(err) {
		t.Errorf("mkdir in safe mode: %v", err)
	}
	if _, err := f.Stat(t.Context(), "/file"); err != nil {
		t.Errorf("stat in safe mode: %v", err)
	}
	if n := f.Calls(fake.OpStat); n != 4 {
		t.Errorf("%d calls of stat, want 4", n)
	}
}

func TestContextEndsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		f.Delay(fake.OpList, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := f.List(ctx, "/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("list: %v", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("waited %s", d)
		}
	})
}

// Each call of an upload is failed once: the upload either succeeds with the whole
// file, or fails and leaves nothing.
func TestUploadUnderEachFault(t *testing.T) {
	for op := fake.OpStat; op <= fake.OpAbort; op++ {
		for n := 1; n <= 3; n++ {
			synctest.Test(t, func(t *testing.T) {
				f := fake.New(fake.Options{})
				f.FailNth(fake.OpCommit, 1, hdfs.ErrUnavailable) // forces a second attempt
				f.FailNth(op, n, hdfs.ErrUnavailable)
				got, err := hdfs.Upload(t.Context(), f, "/file", hdfs.UploadOptions{}, func() (io.ReadCloser, error) {
					return io.NopCloser(io.LimitReader(zeros{}, 10_000)), nil
				})
				if err != nil || got != 10_000 {
					t.Errorf("%s, call %d: %d bytes, %v", op, n, got, err)
				}
				info, err := f.Stat(t.Context(), "/file")
				if op == fake.OpStat && n == 1 {
					info, err = f.Stat(t.Context(), "/file")
				}
				if err != nil || info.LengthBytes != 10_000 {
					t.Errorf("%s, call %d: stat %+v, %v", op, n, info, err)
				}
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestUploadGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		for _, host := range fake.Hosts(3, 2) {
			f.StopDataNode(host.IP)
		}
		var retried []int
		_, err := hdfs.Upload(t.Context(), f, "/file", hdfs.UploadOptions{Attempts: 3, OnRetry: func(n int, err error) { retried = append(retried, n) }},
			func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(zeros{}, 10)), nil })
		if !errors.Is(err, hdfs.ErrUnavailable) || f.Calls(fake.OpCreate) != 3 {
			t.Errorf("%d attempts, %v", f.Calls(fake.OpCreate), err)
		}
		if diff := cmp.Diff([]int{1, 2}, retried); diff != "" {
			t.Errorf("retried (-want +got):\n%s", diff)
		}
		if entries, err := f.List(t.Context(), "/"); err != nil || len(entries) != 0 {
			t.Errorf("left behind: %v %v", entries, err)
		}
	})
}
