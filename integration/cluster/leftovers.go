package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// leftoversScript prints one line for each thing that a task may leave on a machine. It ignores
// containerd's images and the daemon's own files, and the folders that containerd keeps for what
// is in them. It fails if containerd does not answer, which would otherwise look like nothing.
const leftoversScript = `
ns=drover
ctr version >/dev/null || exit 1
ctr -n $ns container ls -q 2>/dev/null | sed 's/^/container /'
ctr -n $ns task ls -q 2>/dev/null | sed 's/^/task /'
ctr -n $ns snapshot ls 2>/dev/null | awk 'NR>1 && $3=="Active" {print "snapshot " $1}'
ctr -n $ns leases ls -q 2>/dev/null | sed 's/^/lease /'
find /sys/fs/cgroup/drover/tasks -mindepth 1 -maxdepth 1 -type d ! -name system 2>/dev/null | sed 's/^/cgroup /'
awk '$2 ~ "^/data/drover/attempts|/run/containerd/io.containerd.runtime.v2.task/drover/" {print "mount " $2}' /proc/mounts
find /data/drover/attempts -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/folder /'
find /data/drover/images -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/dump /'
find /run/drover-secrets-* -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/secret /'
find /run/containerd/io.containerd.runtime.v2.task/drover -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/bundle /'
find /run/containerd/runc/$ns -mindepth 1 -maxdepth 1 ! -name .cache 2>/dev/null | sed 's/^/runc /'
find /run/containerd/s -mindepth 1 -maxdepth 1 2>/dev/null | sed 's/^/socket /'
for p in /proc/[0-9]*; do
  read -r g <$p/cgroup
  case $g in */drover/tasks/*) read -r n <$p/comm; [ "$n $g" = "drover 0::/drover/tasks/system" ] || echo "process ${p#/proc/} $n in ${g#*::}";; esac
done 2>/dev/null
true`

// Folders lists the folders of attempts on machine k, as Leftovers does. They go last of what an attempt has, with its
// logs, so that a test that waits for all to be gone need not look for the rest before: Leftovers takes seconds
// of an emulated processor, this some milliseconds.
func (c *Cluster) Folders(ctx context.Context, k int) ([]string, error) {
	out, err := c.node(k).Sh(ctx, `cd /data/drover/attempts 2>/dev/null || exit 0; for f in *; do [ ! -e "$f" ] || echo "folder /data/drover/attempts/$f"; done`)
	if err != nil {
		return nil, fmt.Errorf("cluster: folders of attempts: %w", err)
	}
	return linesOf(out), nil
}

// Leftovers lists what tasks left on machine k: containers, snapshots, leases of imports, cgroups, mounts, folders, dumps,
// secrets, states of runc, sockets of shims of any namespace, and processes in the tasks' cgroups (shims and loggers too,
// but not the daemon). It includes attempts of failed tasks that the node retains.
func (c *Cluster) Leftovers(ctx context.Context, k int) ([]string, error) {
	out, err := c.node(k).Sh(ctx, leftoversScript)
	if err != nil {
		return nil, fmt.Errorf("cluster: leftovers: %w", err)
	}
	return linesOf(out), nil
}

// linesOf returns the lines of a text that are not empty.
func linesOf(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return l == "" })
}

// Leftovers lists what broken uploads and damage left in the server's store of files. It does not list whole files,
// which belong to the jobs that the cluster still knows.
func (s *Server) Leftovers() (found []string, err error) {
	store := filepath.Join(s.dataDir(), "blobs")
	for _, dir := range []string{"incoming", "damaged"} {
		list, err := os.ReadDir(filepath.Join(store, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cluster: leftovers: %w", err)
		}
		for _, f := range list {
			found = append(found, dir+" "+f.Name())
		}
	}
	return found, nil
}
