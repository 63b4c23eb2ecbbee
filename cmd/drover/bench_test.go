package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler/bench"
)

func TestBenchSchedulerPrintsOneJSONObjectPerCase(t *testing.T) {
	var out, errs bytes.Buffer
	err := newApp(strings.NewReader(""), &out, &errs).Run([]string{"drover", "bench", "scheduler", "-nodes", "5,10", "-placements", "2000", "-json"})
	if err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	dec := json.NewDecoder(&out)
	for _, nodes := range []int{5, 10} {
		var r bench.Result
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Nodes != nodes || r.Placements < 2000 || r.PlacementsPerS <= 0 || r.Packing <= 0 || r.RSSBytes == 0 {
			t.Errorf("%+v", r)
		}
	}
	if dec.More() {
		t.Error("more objects than cases")
	}
}

func TestBenchSchedulerRefusesUnknownOptions(t *testing.T) {
	for name, args := range map[string][]string{
		"an unknown policy":    {"-policy", "fiffo"},
		"unknown features":     {"-features", "most"},
		"a parameter of none":  {"-set", "colour=red"},
		"a flag that is words": {"-set", "strict"},
	} {
		var out, errs bytes.Buffer
		full := append([]string{"drover", "bench", "scheduler", "-nodes", "2", "-placements", "10"}, args...)
		if err := newApp(strings.NewReader(""), &out, &errs).Run(full); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct {
		us   []int64
		q    float64
		want int64
	}{
		"of none":                       {nil, 0.5, 0},
		"the median of three":           {[]int64{30, 10, 20}, 0.5, 20},
		"the median of four is the low": {[]int64{40, 10, 30, 20}, 0.5, 20},
		"the most":                      {[]int64{2, 9, 1}, 1, 9},
		"the least":                     {[]int64{2, 9, 1}, 0, 1},
		"nine of ten":                   {[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9},
	} {
		if got := quantileOf(c.us, c.q); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestComparisonWithCriuBaseline(t *testing.T) {
	r := &levelResult{ImageBytes: 200, StepsUS: map[string][]int64{"checkpoint": {300, 100, 500}, "restore": {80}}}
	r.compareToBaseline(&criuBaseline{ImageBytes: 100, DumpUS: []int64{100, 120, 90}, RestoreUS: []int64{20}})
	if r.DumpRatio != 1.5 || r.RestoreRatio != 2 {
		t.Errorf("%g and %g times as long, want 1.5 and 2", r.DumpRatio, r.RestoreRatio)
	}
	none := &levelResult{ImageBytes: 200, StepsUS: map[string][]int64{}}
	if none.compareToBaseline(nil); none.DumpRatio != 0 {
		t.Errorf("%g without anything to compare with", none.DumpRatio)
	}
	seen := &droverv1.SeenAttempt{LevelSteps: []*droverv1.LevelStep{{Step: "freeze", DurationUs: 70}, {Step: "freeze/kernel", DurationUs: 12}, {Step: "swap out", DurationUs: 5}}}
	if got := timeAfterKernelFreeze(seen); got != 58 {
		t.Errorf("after the kernel %d µs, want 58", got)
	}
}

func TestMemoryPatternDetectsEveryChange(t *testing.T) {
	const size = 3*chunkBytes + 2*pageBytes
	b := make([]byte, pieceOffset(size))
	for at := 0; at < size; at += chunkBytes {
		fillPattern(b[pieceOffset(at):pieceOffset(at)+min(chunkBytes, size-at)], int64(at))
	}
	seen := map[string]int{}
	for at := 0; at < size; at += pageBytes {
		page := string(b[pieceOffset(at) : pieceOffset(at)+pageBytes])
		if before, twice := seen[page]; twice {
			t.Fatalf("the pages at %d and %d are alike", before, at)
		}
		seen[page] = at
	}
	h := memoryHolder{pid: os.Getpid(), address: int64(uintptr(unsafe.Pointer(&b[0]))), bytes: size}
	if err := h.verify(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 8, chunkBytes - 1, 2*chunkBytes + pageBytes, size - 1} {
		at := pieceOffset(at)
		b[at]++
		if err := h.verify(); !errors.Is(err, fault.Corrupt) {
			t.Errorf("byte %d is another one: %v", at, err)
		}
		b[at]--
	}
	runtime.KeepAlive(b)
}

func TestMemoryHolderReportsItsAddress(t *testing.T) {
	const size = 4<<20 + 123
	drover, err := exec.LookPath("drover") // linked by TestMain
	if err != nil {
		t.Fatal(err)
	}
	h, err := startMemoryHolder(drover, size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(h.pid, syscall.SIGKILL) }()
	if err := h.verify(); err != nil {
		t.Error(err)
	}
}
