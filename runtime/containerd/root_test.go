package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/sleep"
)

func TestOnlySnapshotsWithoutAnUpperLayerAreLayers(t *testing.T) {
	type M = mount.Mount
	for name, c := range map[string]struct {
		all          []M
		lowers, opts []string
		ok           bool
	}{
		"one layer":                  {[]M{{Type: "bind", Source: "/s/1/fs", Options: []string{"ro", "rbind"}}}, []string{"/s/1/fs"}, nil, true},
		"several":                    {[]M{{Type: "overlay", Options: []string{"index=off", "lowerdir=/s/2/fs:/s/1/fs"}}}, []string{"/s/2/fs", "/s/1/fs"}, []string{"index=off"}, true},
		"one that is written to":     {[]M{{Type: "overlay", Options: []string{"workdir=/s/3/work", "upperdir=/s/3/fs", "lowerdir=/s/1/fs"}}}, nil, nil, false},
		"a bind that is written to":  {[]M{{Type: "bind", Source: "/s/1/fs", Options: []string{"rw", "rbind"}}}, []string{"/s/1/fs"}, nil, false},
		"another snapshotter's":      {[]M{{Type: "ext4", Source: "/dev/dm-1"}}, nil, nil, false},
		"mounts one over the other":  {[]M{{Type: "bind"}, {Type: "overlay"}}, nil, nil, false},
		"an overlay without a layer": {[]M{{Type: "overlay"}}, nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			lowers, opts, ok := layersOf(c.all)
			if ok != c.ok || ok && (!slices.Equal(lowers, c.lowers) || !slices.Equal(opts, c.opts)) {
				t.Errorf("%v %v %v, want %v %v %v", lowers, opts, ok, c.lowers, c.opts, c.ok)
			}
		})
	}
}

func TestRootHasMissingMountPoints(t *testing.T) {
	dir := t.TempDir()
	top, base := filepath.Join(dir, "top"), filepath.Join(dir, "base")
	for _, p := range []string{filepath.Join(top, "etc"), filepath.Join(base, "proc"), filepath.Join(base, "data/in")} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Driver{cfg: Config{stateDir: filepath.Join(dir, "state")}}
	spec := rootSpec{Process: struct{ Cwd string }{"/srv/work"}, Mounts: []specs.Mount{
		{Type: "proc", Destination: "/proc"}, {Type: "tmpfs", Destination: "/dev"}, {Type: "devpts", Destination: "/dev/pts"},
		{Type: "bind", Source: dir, Destination: "/task"}, {Type: "bind", Source: dir, Destination: "/data/in"},
		{Type: "bind", Source: file, Destination: "/etc/conf"},
	}}
	for range 2 { // it is safe to repeat
		root, err := d.readOnlyRoot("c1", spec, []string{top, base}, []string{"index=off"})
		if err != nil {
			t.Fatal(err)
		}
		points := filepath.Join(dir, "state/c1/points")
		want := []mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"ro", "lowerdir=" + points + ":" + top + ":" + base, "index=off"}}}
		if diff := cmp.Diff(want, root); diff != "" {
			t.Error(diff)
		}
		var made []string
		err = filepath.Walk(points, func(p string, st os.FileInfo, err error) error {
			if rel, _ := filepath.Rel(points, p); err == nil && rel != "." {
				made = append(made, fmt.Sprintf("%s %v", rel, st.IsDir()))
			}
			return err
		})
		if diff := cmp.Diff([]string{"dev true", "etc true", "etc/conf false", "srv true", "srv/work true", "task true"}, made); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
}

// TestNeighbourWritesDoNotDelayDelete has a neighbour with a low limit fill the
// page cache with dirty data: Delete must finish before that is written.
func TestNeighbourWritesDoNotDelayDelete(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	const slow = 256 << 10
	l := b.limits()
	l.Disks = []cgroups.DiskLimit{{Device: b.disk, ReadBPS: slow, WriteBPS: slow}}
	g := b.group(t, "neighbour", l)
	leaf, err := g.OpenLeaf(cgroups.Helpers)
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	file := filepath.Join(b.data, "dirty")
	const want = 12 << 20
	c := exec.Command("dd", "if=/dev/zero", "of="+file, "bs=1M", fmt.Sprint("count=", want>>20))
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	defer func() {
		if err := os.Truncate(file, 0); err != nil { // so that dirty data need not be written
			t.Error(err)
		}
		if err := g.Kill(cgroups.Whole); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	for dirty := int64(0); dirty < want/2; {
		if st, err := os.Stat(file); err == nil {
			dirty = st.Size()
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			t.Fatal("the neighbour does not write")
		}
	}
	s := b.spec(t, d, "beside", "exit", "0")
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Wait(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	stats, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if _, written := onDisk(stats, b.disk); int64(written) >= st.Size() {
		t.Errorf("Delete waited until the neighbour had written %d of %d bytes", written, st.Size())
	}
}
