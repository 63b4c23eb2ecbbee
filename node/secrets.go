package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// maxSecret is the largest secret, in bytes: the kernel takes no longer string
// into an environment.
const maxSecret = 96 << 10

const (
	secretMount   = "/.drover-secrets" // in the container, read-only
	secretEnvName = "env"              // the file in it: NAME=value entries, each ended by a zero byte
)

// secretMountOf returns the folder in memory for the daemon of a data folder: several
// daemons of one machine have one each.
func secretMountOf(data string) string {
	base := "/run"
	if !inMemory(base) && inMemory("/dev/shm") { // inside of a container, perhaps
		base = "/dev/shm"
	}
	sum := sha256.Sum256([]byte(data))
	return filepath.Join(base, "drover-secrets-"+hex.EncodeToString(sum[:6]))
}

// inMemory reports whether a folder's file system has no disk.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return false
	}
	return int64(st.Type) == unix.TMPFS_MAGIC || int64(st.Type) == unix.RAMFS_MAGIC
}

// secretDir is the attempt's folder in memory. It exists while there is a container.
func (a *attempt) secretDir() string { return filepath.Join(a.d.cfg.SecretMount, a.id.String()) }

// loadSecrets gets the values of the task's secrets. A driver that keeps its
// specifications in memory gets them in the environment; for others they go into
// a file in memory, from which the harness takes them when the task starts. They
// are in no record, report and log of the node.
func (a *attempt) loadSecrets(ctx context.Context, spec *droverv1.TaskSpec, uid uint32) error {
	if len(spec.GetSecrets()) == 0 {
		return nil
	}
	values, err := a.d.storedSecrets(ctx, a.id.Key(), spec)
	if a.waitsFor = ""; errors.Is(err, fault.Unavailable) {
		a.waitsFor = err.Error()
	}
	if err != nil {
		return err
	}
	for _, s := range spec.GetSecrets() {
		if _, stored := values[s.GetEnv()]; stored {
			continue
		}
		if values[s.GetEnv()], err = a.d.readSecret(spec.GetTenant(), s.GetRef()); err != nil {
			return err
		}
	}
	if a.d.cfg.usesHostPaths() {
		a.secrets = values
		return nil
	}
	if err := a.makeSecretDir(uid); err != nil {
		return err
	}
	return writeSecrets(filepath.Join(a.secretDir(), secretEnvName), values, uid)
}

// storedSecrets returns the values of the stored secrets of an attempt, by variable.
// The coordinator gives them to the node that is to run it, and to no other.
func (d *daemon) storedSecrets(ctx context.Context, key *droverv1.AttemptKey, spec *droverv1.TaskSpec) (map[string]string, error) {
	values, stored := map[string]string{}, 0
	for _, s := range spec.GetSecrets() {
		if ref, err := jobspec.ParseSecretRef(s.GetRef(), spec.GetTenant()); err == nil && ref.Stored {
			stored++
		}
	}
	if stored == 0 {
		return values, nil
	}
	id := d.identity()
	res, err := d.cfg.Coordinator.GetSecrets(ctx, connect.NewRequest(&droverv1.GetSecretsRequest{Node: id.Node, Epoch: id.Epoch, Key: key}))
	if err != nil {
		if err = wire.FromError(err); fault.Class(err) == nil || errors.Is(err, fault.Denied) || errors.Is(err, fault.Unsupported) {
			// The node may be ahead of what a new leader has applied, or the leader older than this program.
			return nil, fault.New(fault.Unavailable, "the secrets of the task: %v", err)
		}
		return nil, err
	}
	for _, x := range res.Msg.GetSecrets() {
		values[x.GetEnv()] = string(x.GetValue())
	}
	if len(values) != stored {
		return nil, fault.New(fault.Unavailable, "the coordinator gave %d of the task's %d secrets", len(values), stored)
	}
	return values, nil
}

// makeSecretDir makes the attempt's folder in memory. It refuses a folder on a disk.
func (a *attempt) makeSecretDir(uid uint32) error {
	if err := makePrivateDir(a.d.cfg.SecretMount); err != nil {
		return err
	}
	if !inMemory(a.d.cfg.SecretMount) {
		return fault.New(fault.Unsupported, "secrets cannot be passed to containers of node %s: %s is on a disk, not in memory (tmpfs)", a.d.cfg.Info.GetName(), a.d.cfg.SecretMount)
	}
	dir := a.secretDir()
	if err := os.Mkdir(dir, 0o500); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if os.Geteuid() != 0 {
		return os.Chmod(dir, 0o700)
	}
	return os.Chown(dir, int(uid), 0)
}

// makePrivateDir makes a folder, which must then be the daemon's alone: others can
// write to the one above, and may have been first.
func makePrivateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.IsDir() || st.Mode().Perm() != 0o700 || sys.Uid != uint32(os.Geteuid()) {
		return fault.New(fault.Denied, "%s is not the daemon's own folder: remove it", dir)
	}
	return nil
}

// writeSecrets writes the file that the harness reads; its owner alone can.
func writeSecrets(path string, values map[string]string, uid uint32) error {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if strings.ContainsRune(values[name], 0) {
			return fault.New(fault.Invalid, "the secret for variable %s has a zero byte: no environment variable can", name)
		}
		fmt.Fprintf(&b, "%s=%s\x00", name, values[name])
	}
	defer func() { clear(b.Bytes()) }()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	if os.Geteuid() == 0 {
		err = errors.Join(err, f.Chown(int(uid), 0))
	}
	return errors.Join(err, f.Close())
}

// restoreSecretMount makes the folder that a restored container has mounted. It stays
// empty: the program has its variables from the image.
func (a *attempt) restoreSecretMount(spec *droverv1.TaskSpec) error {
	if len(spec.GetSecrets()) == 0 || a.d.cfg.usesHostPaths() {
		return nil
	}
	uid, err := a.d.taskUID(spec)
	if err != nil {
		return err
	}
	return a.makeSecretDir(uid)
}

// dropSecrets forgets the values of an attempt without a container.
func (a *attempt) dropSecrets() error {
	a.secrets = nil
	return os.RemoveAll(a.secretDir())
}

// readSecret resolves a reference to a file in the folder of the task's tenant below
// the node's folder of secrets. Links out of the tenant's folder are not followed.
func (d *daemon) readSecret(tenant, ref string) (string, error) {
	r, err := jobspec.ParseSecretRef(ref, tenant)
	if err != nil || r.Stored {
		return "", fault.New(fault.Invalid, "secret: %w", errors.Join(err, fmt.Errorf("reference %q is to no file", ref)))
	}
	dir := filepath.Join(d.cfg.Secrets, tenant)
	value, err := readBelow(dir, r.Name)
	if err != nil {
		return "", fault.New(fault.NotFound, "secret %q of tenant %q cannot be read on node %s: put it into %s as a regular file of at most %d KiB, readable by the daemon",
			r.Name, tenant, d.cfg.Info.GetName(), dir, maxSecret>>10)
	}
	return strings.TrimSuffix(value, "\n"), nil
}

// readBelow returns the content of a small regular file in a folder.
func readBelow(dir, name string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	st, err := root.Stat(name)
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSecret {
		return "", fault.New(fault.Invalid, "%s is no small regular file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret))
	return string(b), err
}
