package reuse

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// copyDeviceRules attaches the programs by which the engine rules the use of devices in one cgroup
// to another one, and reads back that they are there.
func copyDeviceRules(from, to string) error {
	want, err := devicePrograms(from)
	if err != nil {
		return err
	}
	if len(want) == 0 {
		return fmt.Errorf("cgroup %s has none", from)
	}
	had, err := devicePrograms(to)
	if err != nil {
		return err
	}
	for id := range want {
		if !had[id] {
			if err := attach(id, to); err != nil {
				return err
			}
		}
	}
	now, err := devicePrograms(to)
	for id := range want {
		if err == nil && !now[id] {
			err = fmt.Errorf("program %d is not attached to %s", id, to)
		}
	}
	return err
}

// devicePrograms returns the device programs of a cgroup.
func devicePrograms(dir string) (map[ebpf.ProgramID]bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := link.QueryPrograms(link.QueryOptions{Target: int(f.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return nil, fmt.Errorf("device rules of %s: %w", dir, err)
	}
	all := map[ebpf.ProgramID]bool{}
	for _, p := range r.Programs {
		all[p.ID] = true
	}
	return all, nil
}

// attach attaches one program; it stays when this process ends.
func attach(id ebpf.ProgramID, to string) (err error) {
	f, err := os.Open(to)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(f.Fd()), Program: p, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI})
}
