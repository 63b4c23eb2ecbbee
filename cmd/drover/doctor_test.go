package main

import (
	"strings"
	"testing"

	"github.com/drover-run/drover/runtime"
)

func TestDoctorNamesLeftovers(t *testing.T) {
	all := []runtime.Leftover{{ID: "1.0.0.1.1", Listed: true, Parts: []string{"bundle"}}}
	if f := leftoversResult(all); f.Status != statusOK {
		t.Errorf("a container whose start may be under way: %+v", f)
	}
	for range maxLeftovers + 2 {
		all = append(all, runtime.Leftover{ID: "8.3.0.1.1", Parts: []string{"mount /run/x", "process 7 (containerd-shim-runc-v2)"}})
	}
	f := leftoversResult(all)
	if f.Status != statusDegraded || !strings.Contains(f.Detail, "8.3.0.1.1: mount /run/x, process 7") || !strings.HasSuffix(f.Detail, "and of 2 more") {
		t.Errorf("%+v", f)
	}
}
