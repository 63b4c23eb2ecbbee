package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

func writeSecret(t *testing.T, dir, tenant, name, value string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, tenant), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tenant, name), []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsBelongToTenants(t *testing.T) {
	dir := t.TempDir()
	writeSecret(t, dir, "a", "token", "of a\n")
	writeSecret(t, dir, "b", "token", "of b")
	writeSecret(t, dir, "b", "only", "b's alone")
	writeSecret(t, dir, "", "old", "in the folder itself")
	writeSecret(t, dir, "a", "long", strings.Repeat("x", maxSecret+1))
	if err := os.Symlink("../b/only", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "a", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{cfg: Config{Secrets: dir, Info: &droverv1.NodeInfo{Name: "n1"}}}
	for _, tc := range []struct {
		tenant, ref, want string
		err               error
	}{
		{"a", "file:token", "of a", nil},
		{"b", "file:token", "of b", nil},
		{"a", "file:a/token", "of a", nil},
		{"a", "file:only", "", fault.NotFound},
		{"a", "file:b/only", "", fault.Invalid},
		{"a", "file:../b/only", "", fault.Invalid},
		{"a", "file:a/../b/only", "", fault.Invalid},
		{"a", "file:old", "", fault.NotFound},
		{"a", "file:../old", "", fault.Invalid},
		{"..", "file:token", "", fault.Invalid},
		{"", "file:old", "", fault.Invalid},
		{"a", "file:link", "", fault.NotFound},
		{"a", "file:pipe", "", fault.NotFound},
		{"a", "file:long", "", fault.NotFound},
		{"a", "token", "", fault.Invalid},
	} {
		got, err := d.readSecret(tc.tenant, tc.ref)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("tenant %q, %q: %q, %v; want %q, %v", tc.tenant, tc.ref, got, err, tc.want, tc.err)
		}
		if err != nil && strings.Contains(err.Error(), "b's alone") {
			t.Errorf("the error has the value: %v", err)
		}
	}
}
