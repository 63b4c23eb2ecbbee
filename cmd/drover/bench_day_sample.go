package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daySample is what the process had at one time.
type daySample struct {
	Seconds    float64 `json:"seconds"`
	Ended      int64   `json:"ended"` // jobs, or tasks of the one job
	MemoryMiB  float64 `json:"memory_mib"`
	InUseMiB   float64 `json:"in_use_mib"` // of Go's heap, after the last collection
	Goroutines float64 `json:"goroutines"`
	Descs      float64 `json:"descriptors"`
	Attempts   float64 `json:"attempts"` // with a folder on the node
	Folders    float64 `json:"folders"`
	Files      float64 `json:"files"`
	DiskMiB    float64 `json:"disk_mib"`
}

// Samples of a run: short runs have fewer.
const (
	daySamples  = 240
	dayInterval = 50 * time.Millisecond // the least between two
)

// sampleUntil takes samples, as many at the beginning as at the end of the work.
func (r *dayRun) sampleUntil(ctx context.Context, began time.Time, end <-chan struct{}) error {
	next, shown := int64(0), int64(0)
	t := time.NewTicker(dayInterval)
	defer t.Stop()
	for {
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		n := r.ended.Load()
		if tenth := 10 * n / int64(r.units); tenth > shown {
			shown = tenth
			took := time.Since(began)
			fmt.Fprintf(r.c.App.ErrWriter, "%d of %d ended in %s, about %s left\n", n, r.units, took.Round(time.Second), (took * time.Duration(int64(r.units)-n) / time.Duration(n)).Round(time.Second))
		}
		if n < next {
			continue
		}
		next = n + int64(max(1, r.units/daySamples))
		s, err := r.sample(ctx)
		if err != nil {
			return err
		}
		s.Seconds, s.Ended = time.Since(began).Seconds(), n
		r.samples = append(r.samples, s)
		if r.c.Bool("json") {
			if err := json.NewEncoder(r.c.App.Writer).Encode(s); err != nil {
				return err
			}
		}
	}
}

func (r *dayRun) sample(ctx context.Context) (s daySample, err error) {
	s.MemoryMiB = float64(residentBytesOf(r.cmd.Process.Pid)) / (1 << 20)
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
	if err != nil {
		return s, err
	}
	s.Descs = float64(len(open))
	if s.Goroutines, err = r.metric(ctx, "go_goroutines"); err != nil {
		return s, err
	}
	next, err := r.metric(ctx, "go_memstats_next_gc_bytes")
	if err != nil {
		return s, err
	}
	s.InUseMiB = next / 2 / (1 << 20) // with GOGC=100 the next collection is at twice what the last one left
	attempts, err := os.ReadDir(filepath.Join(r.dir, "state", "node", "attempts"))
	if err != nil {
		return s, err
	}
	s.Attempts = float64(len(attempts))
	// Files that are removed meanwhile are skipped.
	err = filepath.WalkDir(filepath.Join(r.dir, "state"), func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		if e.IsDir() {
			s.Folders++
		} else {
			s.Files++
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.DiskMiB += float64(st.Blocks) * 512 / (1 << 20)
		}
		return nil
	})
	return s, err
}

// metric returns a metric of the process.
func (r *dayRun) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := r.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s: the coordinator answered %s", name, res.Status)
}
