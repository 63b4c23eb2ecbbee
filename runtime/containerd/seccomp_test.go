package containerd

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/internal/seed"
)

// allows returns how many rules of the profile allow an ioctl with this request.
func allows(t *testing.T, p *specs.LinuxSeccomp, request uint64) (n int) {
	t.Helper()
	for _, s := range p.Syscalls {
		if !slices.Contains(s.Names, "ioctl") {
			continue
		}
		if s.Action != specs.ActAllow || len(s.Args) != 1 || s.Args[0].Index != 1 || s.Args[0].Op != specs.OpMaskedEqual {
			t.Fatalf("rule %+v", s)
		}
		if request&s.Args[0].Value == s.Args[0].ValueTwo {
			n++
		}
	}
	return n
}

func TestIoctlsThatLeaveTheQuotaAreForbidden(t *testing.T) {
	o := &oci.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{}}
	if err := withSeccomp()(context.Background(), nil, nil, o); err != nil {
		t.Fatal(err)
	}
	p := o.Linux.Seccomp
	if p.DefaultAction != specs.ActErrno {
		t.Fatalf("default action %s", p.DefaultAction)
	}
	if want := []specs.Arch{specs.ArchX86_64, specs.ArchX86}; !slices.Equal(p.Architectures, want) {
		t.Errorf("ABIs %v, want %v", p.Architectures, want)
	}
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, f := range forbiddenIoctls {
		for _, high := range []uint64{0, 1 << 32, 0xffffffff << 32, uint64(r.Uint32()) << 32} {
			if n := allows(t, p, high|uint64(f)); n != 0 {
				t.Errorf("%#x is allowed by %d rules", high|uint64(f), n)
			}
		}
		for bit := range 32 {
			if near := f ^ 1<<bit; !slices.Contains(forbiddenIoctls, near) && allows(t, p, uint64(near)) == 0 {
				t.Errorf("%#x, one bit from %#x, is forbidden", near, f)
			}
		}
	}
	for range 100_000 {
		if v := r.Uint32(); !slices.Contains(forbiddenIoctls, v) && allows(t, p, uint64(v)) == 0 {
			t.Fatalf("%#x is forbidden", v)
		}
	}
	for _, s := range p.Syscalls {
		if slices.Contains(s.Names, "file_setattr") {
			t.Error("file_setattr, which sets a file's project too, is allowed")
		}
	}
}
