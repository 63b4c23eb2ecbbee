package node

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// maxSecret is the largest secret, in bytes: the kernel takes no longer string
// into an environment.
const maxSecret = 96 << 10

// readSecret resolves a reference in the folder of the task's tenant below the
// node's folder of secrets. The value goes into the container's environment and
// nowhere else. Links out of the tenant's folder are not followed.
func (d *daemon) readSecret(tenant, ref string) (string, error) {
	name, err := jobspec.SecretName(ref, tenant)
	if err != nil {
		return "", fault.New(fault.Invalid, "secret: %w", err)
	}
	dir := filepath.Join(d.cfg.Secrets, tenant)
	value, err := readBelow(dir, name)
	if err != nil {
		return "", fault.New(fault.NotFound, "secret %q of tenant %q cannot be read on node %s: put it into %s as a regular file of at most %d KiB, readable by the daemon",
			name, tenant, d.cfg.Info.GetName(), dir, maxSecret>>10)
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
