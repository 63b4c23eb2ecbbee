package jobspec

import (
	"fmt"
	"strings"

	"github.com/drover-run/drover/internal/names"
)

// SecretName returns the name of a tenant's secret that a reference means:
// "file:NAME", or "file:TENANT/NAME" with the tenant itself. Secrets belong to
// tenants: no reference means another tenant's. The error is for the author of
// the reference.
func SecretName(ref, tenant string) (string, error) {
	name, ok := strings.CutPrefix(ref, "file:")
	if !ok {
		return "", fmt.Errorf("reference %q is not known", ref)
	}
	if owner, rest, ok := strings.Cut(name, "/"); ok {
		if owner != tenant {
			return "", fmt.Errorf("reference %q names a secret of tenant %q, this job's tenant is %q", ref, owner, tenant)
		}
		name = rest
	}
	if !names.Valid(name) || !names.Valid(tenant) {
		return "", fmt.Errorf("reference %q is not known", ref)
	}
	return name, nil
}
