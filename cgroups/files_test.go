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

func TestAwaitEvent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.events")
	frozen := func(text string) (bool, error) { return eventEquals(text, "frozen", "1") }
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	if _, err := (kernelFS{}).await(t.Context(), file, time.Second, frozen); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	put("populated 1\nfrozen 0\n")
	if ok, err := (kernelFS{}).await(t.Context(), file, 2*time.Millisecond, frozen); ok || err != nil {
		t.Errorf("an event that does not occur: %v, %v", ok, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if ok, err := (kernelFS{}).await(ended, file, time.Hour, frozen); ok || err != nil {
		t.Errorf("with a context that has ended: %v, %v", ok, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		put("populated 1\nfrozen 1\n")
	}()
	if ok, err := (kernelFS{}).await(t.Context(), file, time.Minute, func(text string) (bool, error) {
		if text == "" {
			return false, nil // between the truncation and the write of WriteFile
		}
		return frozen(text)
	}); !ok || err != nil {
		t.Errorf("an event during the wait: %v, %v", ok, err)
	}
	<-done
	if _, err := (kernelFS{}).await(t.Context(), file, time.Hour, func(text string) (bool, error) { return eventEquals(text, "dead", "1") }); err == nil {
		t.Error("awaiting a missing key succeeded")
	}
}

func TestUnthrottledCPUMax(t *testing.T) {
	for old, want := range map[string]string{
		"30000 100000": "100000000 100000", "1000 5000": "5000000 5000", // 1000 CPUs
		"max 100000": "", "": "", "30000": "", "30000 x": "",
	} {
		if got, ok := unthrottledCPUMax(old); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", old, got, ok, want)
		}
	}
}
