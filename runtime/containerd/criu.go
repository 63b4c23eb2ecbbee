package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
)

const (
	annotationCriu = "org.criu.config"     // names a file of options to runc, and runc to criu
	runcConf       = "/etc/criu/runc.conf" // that runc names where there is no annotation
)

// criuConf is the file with criu's options for a container besides those that
// runc gives. It is written anew before each dump and restore.
func (d *Driver) criuConf(id string) string { return filepath.Join(d.cfg.StateDir, id, "criu.conf") }

// withCriuConf has runc name the file.
func (d *Driver) withCriuConf(id string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{annotationCriu: d.criuConf(id)})
}

// tellCriu writes the file; cgroup is "" before a dump.
func (d *Driver) tellCriu(id, cgroup string) error {
	operator, err := os.ReadFile(runcConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("criu's options: %w", err)
	}
	file := d.criuConf(id)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("criu's options: %w", err)
	}
	return os.WriteFile(file, []byte(criuOptions(string(operator), cgroup)), 0o600)
}

// criuOptions is what the file says: ours, then the operator's, who may know
// better, then the cgroup.
//
// No debug lines, of which criu writes some for every few pages; errors and the
// proof of a whole dump are of lower levels. Not "network-lock skip", though a
// task has no network to lock and criu starts iptables twice for it, 0.2 s at a
// dump and 0.4 s at a restore on an emulated processor: criu 4.1.1 dies of a
// segmentation fault where that stands in a file that runc names.
//
// On cgroup v2 runc does not say which cgroup it is, and criu would make the one
// of the dump anew, outside of every limit, when the container has another name.
func criuOptions(operator, cgroup string) string {
	var b strings.Builder
	b.WriteString("verbosity=3\n")
	if operator = strings.TrimSpace(operator); operator != "" {
		b.WriteString(operator + "\n")
	}
	if cgroup != "" {
		b.WriteString("cgroup-root " + cgroup + "\n")
	}
	return b.String()
}
