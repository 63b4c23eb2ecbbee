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
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/store"
)

// maxSecret is the largest secret in bytes: the kernel accepts no longer strings in an environment.
const maxSecret = 96 << 10

const (
	secretMount   = "/.drover-secrets" // in the container, read-only
	secretEnvName = "env"              // the file in it: NAME=value entries, each ended by a zero byte
)

// SecretFolder returns the folder in memory in which a daemon keeps the values of secrets of
// running tasks. It depends on the daemon's data folder, an absolute path, so that several daemons
// of one machine have different folders.
func SecretFolder(data string) string {
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

// attemptSecrets owns the values of a task's secrets on this node. They are in no record, report or
// log of the node, and on no disk: only in values, if the driver keeps its specifications in
// memory, or in dir. drop removes them.
type attemptSecrets struct {
	values   map[string]string // by variable; nil where they are in dir
	waitsFor string            // why load is tried again and again

	key    *droverv1.AttemptKey
	dir    string // the attempt's folder in memory. It exists while there is a container
	cfg    *Config
	source *secretSource
}

// load gets the values of the task's secrets. A driver that keeps its specifications in memory gets
// them in the environment. For other drivers they are written into a file in memory, from which the
// harness reads them when the task starts.
func (x *attemptSecrets) load(ctx context.Context, spec *droverv1.TaskSpec, uid uint32) error {
	if len(spec.GetSecrets()) == 0 {
		return nil
	}
	values, err := x.source.stored(ctx, x.key, spec)
	if x.waitsFor = ""; errors.Is(err, fault.Unavailable) {
		x.waitsFor = err.Error()
	}
	if err != nil {
		return err
	}
	for _, s := range spec.GetSecrets() {
		if _, stored := values[s.GetEnv()]; stored {
			continue
		}
		if values[s.GetEnv()], err = x.source.read(spec.GetTenant(), s.GetRef()); err != nil {
			return err
		}
	}
	if x.cfg.usesHostPaths() {
		x.values = values
		return nil
	}
	if err := x.makeDir(uid); err != nil {
		return err
	}
	return writeSecrets(filepath.Join(x.dir, secretEnvName), values, uid)
}

// secretSource gets the values of secrets from the coordinator, or from the tenants' folders below
// dir. It keeps no value.
type secretSource struct {
	coordinator droverv1connect.NodeServiceClient
	dir         string // secret NAME of a tenant is dir/TENANT/NAME
	node        string // the node's name, for messages
	identity    func() store.Identity
}

// stored returns the values of the stored secrets of an attempt, by variable. The coordinator gives
// them only to the node that is to run the attempt.
func (s *secretSource) stored(ctx context.Context, key *droverv1.AttemptKey, spec *droverv1.TaskSpec) (map[string]string, error) {
	values, stored := map[string]string{}, 0
	for _, x := range spec.GetSecrets() {
		if ref, err := jobspec.ParseSecretRef(x.GetRef(), spec.GetTenant()); err == nil && ref.Stored {
			stored++
		}
	}
	if stored == 0 {
		return values, nil
	}
	id := s.identity()
	res, err := s.coordinator.GetSecrets(ctx, connect.NewRequest(&droverv1.GetSecretsRequest{Node: id.Node, Epoch: id.Epoch, Key: key}))
	if err != nil {
		if err = wire.FromError(err); fault.Class(err) == nil || errors.Is(err, fault.Denied) || errors.Is(err, fault.Unsupported) {
			// The node may be ahead of what a new leader has applied, or the leader older than this
			// program.
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

// makeDir makes the attempt's folder in memory. It refuses a folder on a disk.
func (x *attemptSecrets) makeDir(uid uint32) error {
	if err := makePrivateDir(x.cfg.secretMount); err != nil {
		return err
	}
	if !inMemory(x.cfg.secretMount) {
		return fault.New(fault.Unsupported, "secrets cannot be passed to containers of node %s: %s is on a disk, not in memory (tmpfs)", x.cfg.Info.GetName(), x.cfg.secretMount)
	}
	dir := x.dir
	if err := os.Mkdir(dir, 0o500); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if os.Geteuid() != 0 {
		return os.Chmod(dir, 0o700)
	}
	return os.Chown(dir, int(uid), 0)
}

// makePrivateDir makes a folder, and checks that it belongs to the daemon alone: others can write
// to its parent, and may have created it first.
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

// writeSecrets writes the file that the harness reads; only its owner can read it.
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

// restoreMount makes the folder that a restored container mounts. It stays empty, because the
// program's environment is in the dump.
func (x *attemptSecrets) restoreMount(spec *droverv1.TaskSpec) error {
	if len(spec.GetSecrets()) == 0 || x.cfg.usesHostPaths() {
		return nil
	}
	uid, err := x.cfg.taskUID(spec)
	if err != nil {
		return err
	}
	return x.makeDir(uid)
}

// drop removes the values of an attempt without a container.
func (x *attemptSecrets) drop() error {
	x.values = nil
	return os.RemoveAll(x.dir)
}

// read resolves a reference to a file in the folder of the task's tenant below
// the node's folder of secrets. Links out of the tenant's folder are not followed.
func (s *secretSource) read(tenant, ref string) (string, error) {
	r, err := jobspec.ParseSecretRef(ref, tenant)
	if err != nil || r.Stored {
		return "", fault.New(fault.Invalid, "secret: %w", errors.Join(err, fmt.Errorf("reference %q is to no file", ref)))
	}
	dir := filepath.Join(s.dir, tenant)
	value, err := readBelow(dir, r.Name)
	if err != nil {
		return "", fault.New(fault.NotFound, "secret %q of tenant %q cannot be read on node %s: put it into %s as a regular file of at most %d KiB, readable by the daemon",
			r.Name, tenant, s.node, dir, maxSecret>>10)
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
