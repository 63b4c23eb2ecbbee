package containerd

import (
	"context"
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// forbiddenIoctls are refused with EPERM. With them the owner of a file can move
// it out of the project that its disk quota is counted for: nothing but a user
// namespace would forbid that otherwise.
var forbiddenIoctls = []uint32{
	0x401c5820, // FS_IOC_FSSETXATTR: sets a file's project
	0x40086602, // FS_IOC_SETFLAGS: new files of a folder no longer inherit its project
	0x40046602, // FS_IOC32_SETFLAGS
}

// withSeccomp sets containerd's default profile without forbiddenIoctls.
func withSeccomp() oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, o *oci.Spec) error {
		o.Linux.Seccomp = forbidIoctls(seccomp.DefaultProfile(o), forbiddenIoctls)
		return nil
	}
}

// forbidIoctls returns the profile with ioctl allowed for all requests but some.
func forbidIoctls(p *specs.LinuxSeccomp, forbidden []uint32) *specs.LinuxSeccomp {
	for i := range p.Syscalls {
		s := &p.Syscalls[i]
		s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return n == "ioctl" })
	}
	p.Syscalls = slices.DeleteFunc(p.Syscalls, func(s specs.LinuxSyscall) bool { return len(s.Names) == 0 })
	for _, arg := range allExcept(1, forbidden) {
		p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{Names: []string{"ioctl"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}})
	}
	return p
}

// allExcept returns conditions on one argument of which exactly one holds for each
// value but those excluded. Rules can only be joined by "or", and libseccomp takes
// one comparison for each argument in a rule, so "neither a nor b" is not
// possible. A condition therefore takes all values that agree with some excluded
// one down to a bit and differ there, where no other excluded one goes on: at most
// 32 conditions for each excluded value.
//
// Only the lower 32 bits are compared: the kernel ignores the others of an ioctl's
// request, so they must not make a request look different.
func allExcept(index uint, excluded []uint32) (args []specs.LinuxSeccompArg) {
	for bit := 31; bit >= 0; bit-- {
		mask := ^uint32(0) << bit
		taken := map[uint32]bool{}
		for _, v := range excluded {
			taken[v&mask] = true
		}
		var prefixes []uint32
		for prefix := range taken {
			if other := prefix ^ 1<<bit; !taken[other] {
				prefixes = append(prefixes, other)
			}
		}
		slices.Sort(prefixes)
		for _, v := range prefixes {
			args = append(args, specs.LinuxSeccompArg{Index: index, Op: specs.OpMaskedEqual, Value: uint64(mask), ValueTwo: uint64(v)})
		}
	}
	return args
}
