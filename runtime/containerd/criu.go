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
	annotationCriu = "org.criu.config"     // file of options that runc passes to criu
	runcConf       = "/etc/criu/runc.conf" // the file that runc uses without the annotation

	ownCriuOptions = "verbosity=3\nfile-locks\nghost-limit 256M\ntimeout 30\n"
)

// criuFiles is the folder with a folder for each container, in which the file with
// criu's options for it lies, in addition to runc's.
type criuFiles string

func (c criuFiles) file(id string) string { return filepath.Join(string(c), id, "criu.conf") }

// annotate makes runc pass the file to criu.
func (c criuFiles) annotate(id string) oci.SpecOpts {
	return oci.WithAnnotations(map[string]string{annotationCriu: c.file(id)})
}

// write writes the file, before each dump and restore; cgroup is "" before a dump.
func (c criuFiles) write(id, cgroup string) error {
	operator, err := os.ReadFile(runcConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("criu's options: %w", err)
	}
	file := c.file(id)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("criu's options: %w", err)
	}
	return os.WriteFile(file, []byte(criuOptions(string(operator), cgroup)), 0o600)
}

// criuOptions returns the content of the file: Drover's options, then the
// operator's, which take precedence, then those of a restore into a cgroup.
//
// Locked files and deleted files that are open (the temporary files of sort, for
// example) belong to the task alone, so they may be dumped. A process that waits
// for its disk can be seized only afterwards, so criu waits longer than 10 s.
// Restored processes stay stopped until Continue.
//
// Debug lines are switched off, since criu writes several for every few pages;
// errors and the proof of a complete dump have lower levels. "network-lock skip"
// is not set, although a task has no network to lock and criu starts iptables
// twice for it (0.2 s at a dump and 0.4 s at a restore on an emulated processor):
// criu 4.1.1 crashes if a file named by runc contains it.
//
// On cgroup v2 runc does not pass the cgroup, and criu would recreate the one of
// the dump, outside of every limit, if the container has another name.
func criuOptions(operator, cgroup string) string {
	var b strings.Builder
	b.WriteString(ownCriuOptions)
	if operator = strings.TrimSpace(operator); operator != "" {
		b.WriteString(operator + "\n")
	}
	if cgroup != "" {
		b.WriteString("leave-stopped\ncgroup-root " + cgroup + "\n")
	}
	return b.String()
}
