package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSlowUploadReportsProgress(t *testing.T) {
	now := time.Unix(1000, 0)
	var said []string
	m := &uploadMeter{name: "big.tar", size: 100 << 20, start: now, lastReport: now, now: func() time.Time { return now },
		printf: func(f string, args ...any) { said = append(said, fmt.Sprintf(f, args...)) }}
	for range 10 { // 10 MiB a second
		now = now.Add(time.Second)
		m.add(10 << 20)
	}
	want := []string{
		"uploading big.tar: 30MiB of 100MiB, 10MiB/s, 7s left",
		"uploading big.tar: 60MiB of 100MiB, 10MiB/s, 4s left",
		"uploading big.tar: 90MiB of 100MiB, 10MiB/s, 1s left",
	}
	if d := cmp.Diff(want, said); d != "" {
		t.Error(d)
	}
}
