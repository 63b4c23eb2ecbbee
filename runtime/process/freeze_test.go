package process

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/runtime"
)

// counterMarker is the first argument by which TestMain recognises that the test binary was started
// as the counter.
const (
	counterMarker  = "drover-process-counter"
	counterThreads = 16
)

// count counts in a file, on many threads at once, until it is killed.
func count(file string) {
	out, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		os.Exit(2)
	}
	for thread := range counterThreads {
		go func() {
			goruntime.LockOSThread()
			word := make([]byte, 8)
			for n := uint64(1); ; n++ {
				binary.LittleEndian.PutUint64(word, n)
				if _, err := out.WriteAt(word, int64(8*thread)); err != nil {
					os.Exit(3)
				}
			}
		}()
	}
	select {}
}

// Nothing of a frozen task runs: none of its threads, not the first alone.
func TestFrozenMeansThatNoThreadRuns(t *testing.T) {
	d := newDriver(t, Config{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "count")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Create(ctx, runtime.Spec{ID: "counter", Args: []string{os.Args[0], counterMarker, file}, Log: runtime.Log{Dir: t.TempDir()}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx, "counter"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Delete(context.Background(), "counter"); err != nil {
			t.Error(err)
		}
	}()
	read := func() []byte {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 20 {
		for before := read(); slices.Equal(before, read()); {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatal("it does not count")
			}
		}
		if err := d.Freeze(ctx, "counter"); err != nil {
			t.Fatal(err)
		}
		at := read()
		for range 10 {
			<-tick.C
			if now := read(); !slices.Equal(now, at) {
				t.Fatalf("frozen at %x, but then it counted to %x", at, now)
			}
		}
		if err := d.Thaw(ctx, "counter"); err != nil {
			t.Fatal(err)
		}
	}
}
