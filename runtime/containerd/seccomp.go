package containerd

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// forbiddenIoctls are refused with EPERM. With them the owner of a file can move
// it out of the project that its disk quota is counted for: nothing but a user
// namespace would forbid that otherwise.
var forbiddenIoctls = []uint32{
	0x401c5820, // FS_IOC_FSSETXATTR: sets a file's project
	0x40086602, // FS_IOC_SETFLAGS: new files of a folder no longer inherit its project
	0x40046602, // FS_IOC32_SETFLAGS
}

// allowedSockets are the families of sockets that a task can create: for its own processes, and for
// the loopback device. The others reach parts that network namespaces do not separate (AF_VSOCK:
// the machine's hypervisor), or parts of the kernel that are loaded on demand and are not meant for
// tasks (AF_ALG, AF_RDS, AF_TIPC).
var allowedSockets = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// withSeccomp sets containerd's default profile without forbiddenIoctls, with allowedSockets
// alone, and without the x32 ABI: runc compiles the filter for each ABI at each start, and x32
// was a quarter of that. A kernel has it only if it is booted with syscall.x32=y.
func withSeccomp() oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, o *oci.Spec) error {
		p := allowSockets(forbidIoctls(seccomp.DefaultProfile(o), forbiddenIoctls), allowedSockets)
		p.Architectures = slices.DeleteFunc(p.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
		o.Linux.Seccomp = p
		return nil
	}
}

// forbidIoctls returns the profile with ioctl allowed for all requests but some.
func forbidIoctls(p *specs.LinuxSeccomp, forbidden []uint32) *specs.LinuxSeccomp {
	dropRules(p, "ioctl")
	for _, arg := range allExcept(1, forbidden) {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"ioctl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}})
	}
	return p
}

// allowSockets returns the profile with only some families of sockets. socketcall, by which 32-bit
// programs created sockets before Linux 4.3, has its arguments in memory, where a filter cannot see
// them. It is not enough to leave socketcall out: for each rule for socket, libseccomp adds a rule
// that allows socketcall for socket of any family. A rule for socketcall without arguments, and
// with another action than the default, takes precedence over those.
func allowSockets(p *specs.LinuxSeccomp, families []uint64) *specs.LinuxSeccomp {
	dropRules(p, "socket", "socketpair", "socketcall")
	for _, f := range families {
		arg := specs.LinuxSeccompArg{Index: 0, Op: specs.OpEqualTo, Value: f}
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"socket", "socketpair"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}})
	}
	noSuchCall := uint(unix.ENOSYS)
	p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"socketcall"}, Action: specs.ActErrno, ErrnoRet: &noSuchCall})
	return p
}

// dropRules removes system calls from all rules of a profile.
func dropRules(p *specs.LinuxSeccomp, calls ...string) {
	for i := range p.Syscalls {
		s := &p.Syscalls[i]
		s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return slices.Contains(calls, n) })
	}
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(s specs.LinuxSyscall) bool { return len(s.Names) == 0 })
}

// allExcept returns conditions on one argument. Each value except the excluded ones meets at least
// one condition; the excluded ones meet none. Rules can only be joined by "or", and libseccomp
// takes one comparison for each argument in a rule, so "neither a nor b" is not possible. For each
// bit that all excluded values share, one condition matches the values that differ there. For the
// other bits, a condition matches the values that agree with some excluded value down to a bit and
// differ there, if no other excluded value does. Conditions cost time at each start of a container,
// so there should be few.
//
// Only the lower 32 bits are compared: the kernel ignores the others of an ioctl's request, so they
// must not make a request look different.
func allExcept(index uint, excluded []uint32) (args []specs.LinuxSeccompArg) {
	equal := func(mask, v uint32) {
		args = append(args, specs.LinuxSeccompArg{Index: index, Op: specs.OpMaskedEqual, Value: uint64(mask), ValueTwo: uint64(v)})
	}
	var differing uint32
	for _, v := range excluded {
		differing |= v ^ excluded[0]
	}
	var mask uint32
	for bit := 31; bit >= 0; bit-- {
		b := uint32(1) << bit
		if differing&b == 0 {
			equal(b, ^excluded[0]&b)
			continue
		}
		mask |= b
		taken := map[uint32]bool{}
		for _, v := range excluded {
			taken[v&mask] = true
		}
		for _, prefix := range slices.Sorted(maps.Keys(taken)) {
			if other := prefix ^ b; !taken[other] {
				equal(mask, other)
			}
		}
	}
	return args
}
