package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

func imageDigest(n int) string { return fmt.Sprintf("sha256:%064d", n) }

func TestUnneededImagesAreRemoved(t *testing.T) {
	const hour = time.Hour
	tests := map[string]struct {
		used   map[int]time.Duration // time since the last use; images missing here were found after a restart
		needed []int
		limit  int64 // each image has 100 bytes
		gone   []int
	}{
		"recently used images stay":                               {map[int]time.Duration{1: hour, 2: 2 * hour, 3: 23 * hour}, nil, 1000, nil},
		"images unused for a day are removed":                     {map[int]time.Duration{1: hour, 2: 25 * hour, 3: 24 * hour}, nil, 1000, []int{2, 3}},
		"unless an attempt needs it":                              {map[int]time.Duration{1: hour, 2: 25 * hour, 3: 24 * hour}, []int{2}, 1000, []int{3}},
		"over the limit the least recently used image is removed": {map[int]time.Duration{1: hour, 2: 3 * hour, 3: 2 * hour}, nil, 250, []int{2}},
		"as many as it takes":                                     {map[int]time.Duration{1: hour, 2: 3 * hour, 3: 2 * hour}, nil, 100, []int{2, 3}},
		"over the limit needed images stay":                       {map[int]time.Duration{1: hour, 2: 3 * hour, 3: 2 * hour}, []int{1, 2, 3}, 50, nil},
		"needed images count towards the limit":                   {map[int]time.Duration{1: hour, 2: 3 * hour, 3: 2 * hour}, []int{2}, 150, []int{3, 1}},
		"after a restart all count as used now":                   {nil, nil, 1000, nil},
		"equally old ones go by name":                             {nil, nil, 100, []int{1, 2}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_000_000_000, 0)
			e := fake.New(nil, nil)
			defer e.Close()
			d := e.Driver()
			im := &imageStore{driver: d, now: func() time.Time { return now }, lastUsed: map[string]time.Time{}}
			for n := 1; n <= 3; n++ {
				if err := d.Import(t.Context(), imageDigest(n), strings.NewReader(strings.Repeat("x", 100))); err != nil {
					t.Fatal(err)
				}
			}
			for n, ago := range tc.used {
				im.lastUsed[imageDigest(n)] = now.Add(-ago)
			}
			needed := func() (all []string) {
				for _, n := range tc.needed {
					all = append(all, imageDigest(n))
				}
				return all
			}
			got, err := im.collect(t.Context(), 24*hour, tc.limit, needed)
			var want []string
			for _, n := range tc.gone {
				want = append(want, imageDigest(n))
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v, %s", err, diff)
			}
			left, err := d.ListImages(t.Context())
			if err != nil || len(left) != 3-len(want) || slices.ContainsFunc(left, func(i runtime.Image) bool { return slices.Contains(want, i.Digest) }) {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestImageIsNotCollectedDuringImport collects while an import hangs.
func TestImageIsNotCollectedDuringImport(t *testing.T) {
	im := &imageStore{driver: fake.New(nil, nil).Driver(), now: time.Now, lastUsed: map[string]time.Time{}}
	im.importing.RLock() // like ensure
	defer im.importing.RUnlock()
	asked := false
	if gone, err := im.collect(t.Context(), 0, 0, func() []string { asked = true; return nil }); gone != nil || err != nil || asked {
		t.Errorf("collected %v, %v", gone, err)
	}
}

// TestDaemonCollectsUnneeded runs a task with an image, lets it end, and collects
// with age 0.
func TestDaemonCollectsUnneeded(t *testing.T) {
	release := make(chan struct{})
	p := programs()
	p["wait"] = func(ctx context.Context, _ *fake.Process) int {
		select {
		case <-release:
			return 0
		case <-ctx.Done():
			return 1
		}
	}
	b := newTestNode(t, p)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("an image")))
	b.blobs[digest] = []byte("an image")
	old := filepath.Join(b.config.Data, "harness", strings.Repeat("0", 64))
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	b.config.imageAge, b.config.CollectEvery = time.Nanosecond, 2*time.Millisecond
	b.start()
	w := with(groupTask(0, "wait"), func(w *droverv1.WantedAttempt) {
		w.Spec.Image = &droverv1.ImageRef{Kind: "oci-archive", Digest: digest}
	})
	b.put(w)
	b.await(t, w, running)
	has := func() bool {
		ok, err := b.engine.Driver().Has(t.Context(), digest)
		return err == nil && ok
	}
	looks := b.engine.Calls(fake.ListImages)
	poll(t, "two more collections", func() bool { return b.engine.Calls(fake.ListImages) > looks+1 })
	if !has() {
		t.Error("the image of a running task was collected")
	}
	close(release)
	b.await(t, w, succeeded)
	poll(t, "the image of the ended task is gone", func() bool { return !has() })
	poll(t, "the program of an earlier version is gone", func() bool { return !pathExists(old) })
	left, err := os.ReadDir(filepath.Dir(old))
	if err != nil || len(left) != 1 {
		t.Errorf("of the programs are left: %v, %v", left, err)
	}
}
