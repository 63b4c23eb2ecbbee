package containerd

import (
	"context"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/runtime"
)

// namespaceFlags are the bits of clone's flags that make a namespace, a user namespace
// among them.
const namespaceFlags = 0x7E020000

// A task makes no namespace, and enters none: with a user namespace of its own it would
// have capabilities there, and reach parts of the kernel that are for root alone.
func TestNoNamespacesOfItsOwn(t *testing.T) {
	o := &oci.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}, Root: &specs.Root{}}
	for _, opt := range []oci.SpecOpts{ociSpec(runtime.Spec{ID: "a", Args: []string{"x"}, UID: 2001, GID: 2001}, nil, ""), withSeccomp()} {
		if err := opt(context.Background(), nil, &containers.Container{}, o); err != nil {
			t.Fatal(err)
		}
	}
	if c := o.Process.Capabilities; c == nil || len(c.Bounding)+len(c.Effective)+len(c.Permitted)+len(c.Inheritable)+len(c.Ambient) > 0 || !o.Process.NoNewPrivileges {
		t.Errorf("capabilities %+v, no new privileges %v", c, o.Process.NoNewPrivileges)
	}
	if o.Linux.Seccomp.DefaultAction != specs.ActErrno {
		t.Errorf("default action %s", o.Linux.Seccomp.DefaultAction)
	}
	clone := false
	for _, s := range o.Linux.Seccomp.Syscalls {
		for _, name := range []string{"unshare", "setns", "mount", "umount2", "pivot_root", "open_tree", "move_mount", "mount_setattr", "fsopen", "bpf", "keyctl", "init_module", "kexec_load"} {
			if s.Action == specs.ActAllow && slices.Contains(s.Names, name) {
				t.Errorf("%s is allowed", name)
			}
		}
		if s.Action == specs.ActAllow && slices.Contains(s.Names, "clone3") {
			t.Error("clone3, whose flags no filter can read, is allowed")
		}
		if s.Action == specs.ActAllow && slices.Contains(s.Names, "clone") {
			clone = true
			if len(s.Args) != 1 || s.Args[0].Op != specs.OpMaskedEqual || s.Args[0].Value&namespaceFlags != namespaceFlags || s.Args[0].ValueTwo != 0 {
				t.Errorf("clone is allowed with %+v", s.Args)
			}
		}
	}
	if !clone {
		t.Error("clone, which threads need, is forbidden")
	}
}
