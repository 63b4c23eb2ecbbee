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

// write writes the file, before each dump and restore; further are options of this one.
func (c criuFiles) write(id, further string) error {
	operator, err := os.ReadFile(runcConf)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("criu's options: %w", err)
	}
	file := c.file(id)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("criu's options: %w", err)
	}
	return os.WriteFile(file, []byte(criuOptions(string(operator), further)), 0o600)
}

// criuOptions returns the content of the file: Drover's options, then the
// operator's, which take precedence, then those of this dump or restore.
//
// Locked files and deleted files that are open (the temporary files of sort, for
// example) belong to the task alone, so they may be dumped. A process that waits
// for its disk can be seized only afterwards, so criu waits longer than 10 s.
//
// Debug lines are switched off, since criu writes several for every few pages;
// errors and the proof of a complete dump have lower levels. "network-lock skip"
// is not set, although a task has no network to lock and criu starts iptables
// twice for it: criu 4.1.1 crashes if a file named by runc contains it, since it looks
// for the value in a command line that it does not have then. The restore is spared it
// by skipNetworkUnlock.
func criuOptions(operator, further string) string {
	var b strings.Builder
	b.WriteString(ownCriuOptions)
	if operator = strings.TrimSpace(operator); operator != "" {
		b.WriteString(operator + "\n")
	}
	b.WriteString(further)
	return b.String()
}

// restoreOptions returns the options of a restore. Restored processes stay stopped
// until Continue.
//
// On cgroup v2 runc does not pass the cgroup, and criu would recreate the one of
// the dump, outside of every limit, if the container has another name.
func (c criuFiles) restoreOptions(cgroup string) string {
	return "leave-stopped\ncgroup-root " + cgroup + "\n" + c.standIns()
}
