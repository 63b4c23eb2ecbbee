package diskbench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

var smallOptions = Options{Streams: 2, Duration: 20 * time.Millisecond, FileBytes: 1 << 20, BlockBytes: 64 << 10}

func TestMeasureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r, err := measure(context.Background(), dir, smallOptions)
	if err != nil {
		t.Fatal(err)
	}
	if r.ReadBPS <= 0 || r.WriteBPS <= 0 || r.MixedBPS <= 0 || r.Streams != 2 {
		t.Errorf("got %+v", r)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := measure(ctx, dir, smallOptions); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left after the context ended: %v", left)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"one stream": {Streams: 1}, "an odd block": {BlockBytes: 5000}, "a file under a block": {FileBytes: 100}, "an hour": {Duration: time.Hour},
	} {
		if _, err := measure(context.Background(), t.TempDir(), o); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want fault.Invalid", name, err)
		}
	}
}

func TestCapacity(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Rates
		want int64
	}{
		{"a symmetric disk that does both at once", Rates{ReadBPS: 100, WriteBPS: 100, MixedBPS: 200}, 100},
		{"one that shares its bandwidth", Rates{ReadBPS: 100, WriteBPS: 100, MixedBPS: 100}, 50},
		{"a slow writer", Rates{ReadBPS: 100, WriteBPS: 10, MixedBPS: 100}, 10},
	} {
		if got := c.r.Capacity(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestCache(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	good := Rates{Disk: "8:0", ReadBPS: 10, WriteBPS: 10, MixedBPS: 20, Streams: 4, Direct: true, Measured: now}
	file := filepath.Join(t.TempDir(), "rates.json")
	if _, ok := loadCache(file, "8:0", time.Hour, now); ok {
		t.Error("a file that is not there was used")
	}
	for _, c := range []struct {
		name string
		edit func(*Rates)
		disk string
		now  time.Time
		want bool
	}{
		{"the same disk, fresh", func(*Rates) {}, "8:0", now.Add(time.Minute), true},
		{"another disk", func(*Rates) {}, "8:16", now, false},
		{"too old", func(*Rates) {}, "8:0", now.Add(2 * time.Hour), false},
		{"from the future", func(*Rates) {}, "8:0", now.Add(-time.Minute), false},
		{"a rate of nothing", func(r *Rates) { r.WriteBPS = 0 }, "8:0", now, false},
	} {
		r := good
		c.edit(&r)
		if err := saveCache(file, r); err != nil {
			t.Fatal(err)
		}
		if got, ok := loadCache(file, c.disk, time.Hour, c.now); ok != c.want || ok && got != r {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
	for _, text := range []string{"", "{", `{"version":2}`} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, ok := loadCache(file, "8:0", time.Hour, now); ok {
			t.Errorf("%q was used", text)
		}
	}
}

func TestCachedMeasuresOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "rates.json")
	now := time.Now()
	first, fresh, err := Cached(context.Background(), dir, file, time.Hour, now, smallOptions)
	if errors.Is(err, fault.Unsupported) {
		t.Skip("not proved here: that a disk is measured once; the folder for tests is on no disk: ", err)
	}
	if err != nil || !fresh {
		t.Fatalf("%+v, %v, %v", first, fresh, err)
	}
	second, fresh, err := Cached(context.Background(), dir, file, time.Hour, now.Add(time.Minute), smallOptions)
	if err != nil || fresh || second.ReadBPS != first.ReadBPS || !second.Measured.Equal(first.Measured) {
		t.Errorf("%+v, %v, %v", second, fresh, err)
	}
}
