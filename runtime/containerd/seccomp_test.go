package containerd

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

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

// 32-bit programs made sockets to the hypervisor with socketcall, of which no filter sees the family.
func TestSocketsAreForProcessesAndLoopbackAlone(t *testing.T) {
	o := &oci.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{}}
	if err := withSeccomp()(context.Background(), nil, nil, o); err != nil {
		t.Fatal(err)
	}
	families, socketcall := map[string][]uint64{}, 0
	for _, s := range o.Linux.Seccomp.Syscalls {
		if slices.Contains(s.Names, "socketcall") {
			if socketcall++; s.Action != specs.ActErrno || s.ErrnoRet == nil || *s.ErrnoRet != uint(unix.ENOSYS) || len(s.Args) > 0 {
				t.Errorf("socketcall: %s with arguments %v: a rule with arguments, or with the default action, would not win over what libseccomp adds", s.Action, s.Args)
			}
		}
		for _, call := range []string{"socket", "socketpair"} {
			if !slices.Contains(s.Names, call) {
				continue
			}
			if len(s.Args) != 1 || s.Args[0].Index != 0 || s.Args[0].Op != specs.OpEqualTo || s.Action != specs.ActAllow {
				t.Fatalf("%s: %s with arguments %v", call, s.Action, s.Args)
			}
			families[call] = append(families[call], s.Args[0].Value)
		}
	}
	want := []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	if socketcall != 1 || !slices.Equal(families["socket"], want) || !slices.Equal(families["socketpair"], want) {
		t.Errorf("%d rules for socketcall, families %v, want %v", socketcall, families, want)
	}
}
