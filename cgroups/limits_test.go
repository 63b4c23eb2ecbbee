package cgroups

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

var vdb, sda = Device{254, 16}, Device{8, 0}

func testLimits() Limits {
	return Limits{CPUMillis: 500, MemoryBytes: 128 << 20, PIDs: 100, Disks: []DiskLimit{{vdb, 5 << 20, 5 << 20}}}
}

func TestPairs(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Limits)
		had  []Device
		want string // pairs, one per line
	}{
		{"half a core, 128 MiB, 5 MiB/s", func(*Limits) {}, nil,
			"cpu.max 50000 100000\nmemory.swap.max 0\nmemory.max 134217728\npids.max 100\nio.max 254:16 rbps=5242880 wbps=5242880"},
		{"no limits but swap", func(l *Limits) { *l = Limits{CPUMillis: Max, MemoryBytes: Max, PIDs: Max} }, nil,
			"cpu.max max 100000\nmemory.swap.max 0\nmemory.max max\npids.max max"},
		{"a memory limit is cut to whole pages", func(l *Limits) { l.MemoryBytes = 128<<20 + 4095; l.Disks = nil }, nil,
			"cpu.max 50000 100000\nmemory.swap.max 0\nmemory.max 134217728\npids.max 100"},
		{"disks come in order of device", func(l *Limits) { l.Disks = append(l.Disks, DiskLimit{sda, 1, Max}) }, nil,
			"cpu.max 50000 100000\nmemory.swap.max 0\nmemory.max 134217728\npids.max 100\nio.max 8:0 rbps=1 wbps=max\nio.max 254:16 rbps=5242880 wbps=5242880"},
		{"a disk that lost its limit is lifted", func(l *Limits) { l.Disks = nil }, []Device{vdb},
			"cpu.max 50000 100000\nmemory.swap.max 0\nmemory.max 134217728\npids.max 100\nio.max 254:16 rbps=max wbps=max"},
		{"a swapped attempt may swap", func(l *Limits) { l.SwapBytes = Max; l.Disks = nil }, nil,
			"cpu.max 50000 100000\nmemory.swap.max max\nmemory.max 134217728\npids.max 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLimits()
			c.edit(&l)
			var got []string
			for _, p := range l.Pairs(c.had) {
				got = append(got, p.File+" "+p.Value)
			}
			if d := cmp.Diff(strings.Split(c.want, "\n"), got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Limits)
		want string
	}{
		{"a usual set", func(*Limits) {}, ""},
		{"too little CPU", func(l *Limits) { l.CPUMillis = 9 }, "CPU"},
		{"no CPU", func(l *Limits) { l.CPUMillis = 0 }, "CPU"},
		{"more CPU than numbers hold", func(l *Limits) { l.CPUMillis = Max - 1 }, "CPU"},
		{"less than a page", func(l *Limits) { l.MemoryBytes = 100 }, "page"},
		{"negative swap", func(l *Limits) { l.SwapBytes = -1 }, "swap"},
		{"no processes", func(l *Limits) { l.PIDs = 0 }, "processes"},
		{"a disk at rest", func(l *Limits) { l.Disks[0].WriteBPS = 0 }, "disk 254:16"},
		{"a disk twice", func(l *Limits) { l.Disks = append(l.Disks, l.Disks[0]) }, "two limits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testLimits()
			c.edit(&l)
			err := l.validate()
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want fault.Invalid with %q", err, c.want)
			}
		})
	}
}

// Written limits read back as the same limits by the kernel's rules.
func TestPairsReadBack(t *testing.T) {
	limit := func(lo int64) *rapid.Generator[int64] {
		return rapid.OneOf(rapid.Int64Range(lo, 1<<40), rapid.Just(Max))
	}
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			CPUMillis:   limit(minCPUMillis).Draw(t, "cpu"),
			MemoryBytes: limit(4096).Draw(t, "memory"),
			SwapBytes:   limit(0).Draw(t, "swap"),
			PIDs:        limit(1).Draw(t, "pids"),
			Disks: rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) DiskLimit {
				return DiskLimit{Device{rapid.Uint32Range(1, 300).Draw(t, "major"), rapid.Uint32().Draw(t, "minor")}, limit(1).Draw(t, "r"), limit(1).Draw(t, "w")}
			}), 0, 4, func(d DiskLimit) Device { return d.Device }).Draw(t, "disks"),
		}
		if err := l.validate(); err != nil {
			t.Fatal(err)
		}
		held := map[string]string{"io.max": ""}
		for _, p := range l.Pairs(nil) {
			if p.File == "io.max" {
				held["io.max"] = mergeIOMax(held["io.max"], p.Value)
				continue
			}
			held[p.File] = p.Value
		}
		got, err := parseLimits(func(f string) (string, error) { return held[f] + "\n", nil })
		if err != nil || !got.Equal(l) {
			t.Fatalf("wrote %s, read %s, %v", l, got, err)
		}
		if d := cmp.Diff(l.normalized(), got); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	})
}

func FuzzParseLimits(f *testing.F) {
	f.Add("max 100000", "max", "254:16 rbps=1 wbps=max riops=max wiops=max\n8:0 rbps=2")
	f.Add("50000 100000", "4096", "")
	f.Add("1 0", "-5", "x")
	fuzztest.Run(f, func(t *testing.T, cpu, memory, io string) {
		l, err := parseLimits(func(file string) (string, error) {
			switch file {
			case "cpu.max":
				return cpu, nil
			case "io.max":
				return io, nil
			default:
				return memory, nil
			}
		})
		if err != nil {
			if !errors.Is(err, fault.Corrupt) {
				t.Fatalf("an error without the class: %v", err)
			}
			return
		}
		if l.CPUMillis < 0 || l.MemoryBytes < 0 || l.PIDs < 0 || !l.Equal(l.normalized()) {
			t.Fatalf("read %+v", l)
		}
	})
}
