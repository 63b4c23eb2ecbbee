package cgroups

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAwaitingAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.events")
	frozen := func(text string) (bool, error) { return eventIs(text, "frozen", "1") }
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	if _, err := (kernel{}).await(t.Context(), file, time.Second, frozen); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	put("populated 1\nfrozen 0\n")
	if ok, err := (kernel{}).await(t.Context(), file, 2*time.Millisecond, frozen); ok || err != nil {
		t.Errorf("what does not happen: %v, %v", ok, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if ok, err := (kernel{}).await(ended, file, time.Hour, frozen); ok || err != nil {
		t.Errorf("with a context that has ended: %v, %v", ok, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		put("populated 1\nfrozen 1\n")
	}()
	if ok, err := (kernel{}).await(t.Context(), file, time.Minute, func(text string) (bool, error) {
		if text == "" {
			return false, nil // between the truncation and the write of WriteFile
		}
		return frozen(text)
	}); !ok || err != nil {
		t.Errorf("what happens meanwhile: %v, %v", ok, err)
	}
	<-done
	if _, err := (kernel{}).await(t.Context(), file, time.Hour, func(text string) (bool, error) { return eventIs(text, "dead", "1") }); err == nil {
		t.Error("a key that the file does not have was awaited")
	}
}

func TestALiftedCPULimitNeverThrottles(t *testing.T) {
	for old, want := range map[string]string{
		"30000 100000": "100000000 100000", "1000 5000": "5000000 5000", // 1000 CPUs
		"max 100000": "", "": "", "30000": "", "30000 x": "",
	} {
		if got, ok := liftedCPU(old); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", old, got, ok, want)
		}
	}
}
