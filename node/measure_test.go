package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime/fake"
)

func TestMeasure(t *testing.T) {
	e := fake.New(nil, nil)
	defer e.Close()
	dir := t.TempDir()
	c := MeasureConfig{
		Name: "n1", Disks: []string{dir}, Driver: e.Driver(), ReservePercent: 20, Schemes: []string{"file"},
		Rates: func(context.Context, string) (DiskRates, error) {
			return DiskRates{Read: 1000, Write: 800, Mixed: 1200}, nil
		},
	}
	info, err := Measure(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m, a := info.GetMeasured(), info.GetAllocatable()
	if m.GetCpu() < 1000 || m.GetMemory() < 1<<20 || m.GetIo() != 600 {
		t.Errorf("measured %v", m)
	}
	if a.GetCpu() != m.GetCpu()/100*80 || a.GetMemory() != m.GetMemory()/100*80 || a.GetIo() != 480 {
		t.Errorf("allocatable %v of %v less 20%%", a, m)
	}
	if d := info.GetDisks()[0]; d.GetIo() != 480 || d.GetSpace() <= 0 || d.GetPath() != dir || d.GetName() == "" {
		t.Errorf("disk %v", d)
	}
	if len(info.GetCpuFlags()) == 0 || info.GetVersions()["kernel"] == "" || info.GetDriver() != "fake" || len(info.GetLevels()) != 1 {
		t.Errorf("info %v", info)
	}
	c.Rates = func(context.Context, string) (DiskRates, error) { return DiskRates{}, errors.New("the disk is full") }
	if _, err := Measure(t.Context(), c); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a disk that cannot be measured: %v", err)
	}
	c.ReservePercent = 95
	if _, err := Measure(t.Context(), c); !errors.Is(err, fault.Invalid) {
		t.Errorf("a reserve of nearly all: %v", err)
	}
}

func TestVersionWord(t *testing.T) {
	for text, want := range map[string]string{
		"containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6": "1.7.24~ds1",
		"runc version 1.1.15+ds1\ncommit: 1.1":                                "1.1.15+ds1",
		"Version: 4.1.1":                                                      "4.1.1",
		"containerd v2.0.1 abc":                                               "2.0.1",
		"no version in this text":                                             "",
	} {
		if got := versionWord(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
