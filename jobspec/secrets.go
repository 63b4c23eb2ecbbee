package jobspec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/drover-run/drover/internal/names"
)

// Schemes of references to secrets.
const (
	secretFile   = "file:"   // a file of the operator on the node
	secretStored = "secret:" // in the coordinator's store
)

// SecretRef is what a reference to a secret means.
type SecretRef struct {
	Stored  bool // in the coordinator's store; otherwise a file on the node
	Name    string
	Version uint32 // of a stored secret; 0: the newest
}

// StoredSecret returns the reference to a stored secret "NAME" or "NAME@VERSION".
func StoredSecret(name string) string { return secretStored + name }

// ParseSecretRef returns the tenant's secret that a reference means: "secret:NAME"
// or "secret:NAME@VERSION" in the coordinator's store, "file:NAME" or
// "file:TENANT/NAME", with the tenant itself, on the node. Secrets belong to
// tenants: no reference means another tenant's. The error is for the author of the
// reference.
func ParseSecretRef(ref, tenant string) (SecretRef, error) {
	unknown := fmt.Errorf("reference %q is not known", ref)
	if text, ok := strings.CutPrefix(ref, secretStored); ok {
		name, version, pinned := strings.Cut(text, "@")
		r := SecretRef{Stored: true, Name: name}
		if pinned {
			n, err := strconv.ParseUint(version, 10, 32)
			if err != nil || n == 0 || strconv.FormatUint(n, 10) != version {
				return SecretRef{}, fmt.Errorf("reference %q has no version: it is a number from 1 on", ref)
			}
			r.Version = uint32(n)
		}
		if !names.Valid(name) {
			return SecretRef{}, unknown
		}
		return r, nil
	}
	name, ok := strings.CutPrefix(ref, secretFile)
	if !ok {
		return SecretRef{}, unknown
	}
	if owner, rest, ok := strings.Cut(name, "/"); ok {
		if owner != tenant {
			return SecretRef{}, fmt.Errorf("reference %q names a secret of tenant %q, this job's tenant is %q", ref, owner, tenant)
		}
		name = rest
	}
	if !names.Valid(name) || !names.Valid(tenant) {
		return SecretRef{}, unknown
	}
	return SecretRef{Name: name}, nil
}
