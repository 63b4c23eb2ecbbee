package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
	"github.com/drover-run/drover/jobspec"
)

// Limits of secrets. Sizes are of what is stored: values and some 100 bytes for each.
const (
	maxTenantSecrets  = 200     // names of one tenant
	maxSecretVersions = 16      // of one secret
	maxTenantBytes    = 1 << 20 // of all secrets of one tenant
	maxSecretsBytes   = 64 << 20
	MaxSecretValue    = 64 << 10
	secretOverhead    = 128 // bytes counted for a version besides its ciphertext

	// maxGoneSecrets is how many deleted names of a tenant are remembered by their last number.
	maxGoneSecrets = 1000
)

// SecretVersion is one encrypted value. It is never changed once made.
type SecretVersion struct {
	Version    uint32 `json:"version"`
	Created    int64  `json:"created"` // Unix ns
	Actor      string `json:"actor,omitempty"`
	Key        string `json:"key"`
	Nonce      []byte `json:"nonce"`
	Ciphertext []byte `json:"ciphertext"`
}

func (v *SecretVersion) size() int64 { return int64(len(v.Ciphertext)) + secretOverhead }

// Secret is a tenant's secret. It is never changed once made: with another
// version it is another value.
type Secret struct {
	Tenant   string           `json:"tenant"`
	Name     string           `json:"name"`
	Versions []*SecretVersion `json:"versions"` // ascending; at least one
}

// newest returns the version that is used where none is named.
func (s *Secret) newest() *SecretVersion { return s.Versions[len(s.Versions)-1] }

// Version returns a version, the newest for 0, or nil.
func (s *Secret) Version(n uint32) *SecretVersion {
	if s == nil {
		return nil
	}
	if n == 0 {
		return s.newest()
	}
	i, ok := slices.BinarySearchFunc(s.Versions, n, func(v *SecretVersion, n uint32) int { return cmp.Compare(v.Version, n) })
	if !ok {
		return nil
	}
	return s.Versions[i]
}

func (s *Secret) size() (n int64) {
	for _, v := range s.Versions {
		n += v.size()
	}
	return n
}

// secretKey names a secret.
type secretKey struct{ tenant, name string }

// secretStore is the secrets of all tenants.
type secretStore struct {
	of     map[secretKey]*Secret
	bytes  map[string]int64 // by tenant
	number map[string]int   // of names, by tenant
	total  int64

	// A number of a name is used once: a job that names version 2 must never get another
	// value than the one it was written for. last is the highest number that a name had, if
	// it is above that of its newest version or the name is gone. Names that were forgotten
	// had none above the floor of their tenant.
	last  map[secretKey]uint32
	floor map[string]uint32
}

func newSecretStore() secretStore {
	return secretStore{of: map[secretKey]*Secret{}, bytes: map[string]int64{}, number: map[string]int{},
		last: map[secretKey]uint32{}, floor: map[string]uint32{}}
}

// set replaces a secret; nil removes it.
func (s *secretStore) set(k secretKey, next *Secret) {
	if old := s.of[k]; old != nil {
		s.total -= old.size()
		s.bytes[k.tenant] -= old.size()
		s.number[k.tenant]--
		delete(s.of, k)
	}
	if next != nil {
		s.total += next.size()
		s.bytes[k.tenant] += next.size()
		s.number[k.tenant]++
		s.of[k] = next
	}
	if s.number[k.tenant] == 0 {
		delete(s.number, k.tenant)
		delete(s.bytes, k.tenant)
	}
}

// next returns the number of the next version of a secret.
func (s *secretStore) next(k secretKey) uint32 {
	if x := s.of[k]; x != nil {
		return max(x.newest().Version, s.last[k]) + 1
	}
	return max(s.last[k], s.floor[k.tenant]) + 1
}

// used remembers that a number was the highest of a name whose newest version is deleted.
func (s *secretStore) used(k secretKey, number uint32) {
	s.last[k] = max(s.last[k], number)
	gone, floor := 0, s.floor[k.tenant]
	for name, last := range s.last {
		if name.tenant == k.tenant && s.of[name] == nil {
			gone, floor = gone+1, max(floor, last)
		}
	}
	if gone <= maxGoneSecrets {
		return
	}
	s.floor[k.tenant] = floor
	maps.DeleteFunc(s.last, func(name secretKey, _ uint32) bool { return name.tenant == k.tenant && s.of[name] == nil })
}

// secretNumber is a record of last, or of floor if it has no name.
type secretNumber struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name,omitempty"`
	Last   uint32 `json:"last"`
}

// numbers returns last and floor in a fixed order.
func (s *secretStore) numbers() (all []secretNumber) {
	for k, n := range s.last {
		all = append(all, secretNumber{k.tenant, k.name, n})
	}
	for tenant, n := range s.floor {
		all = append(all, secretNumber{tenant, "", n})
	}
	slices.SortFunc(all, func(a, b secretNumber) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func (s *secretStore) restoreNumber(n *secretNumber) {
	if n.Name == "" {
		s.floor[n.Tenant] = n.Last
	} else {
		s.last[secretKey{n.Tenant, n.Name}] = n.Last
	}
}

// Secrets is the encrypted secrets of tenants.
type Secrets struct{ f *Facts }

// Get returns a secret, or nil.
func (s Secrets) Get(tenant, name string) *Secret { return s.f.secrets.of[secretKey{tenant, name}] }

// Next returns the number that the next version of a secret has: one above all that any
// version of that name ever had.
func (s Secrets) Next(tenant, name string) uint32 {
	return s.f.secrets.next(secretKey{tenant, name})
}

// Of returns the secrets of a tenant by name. O(secrets of all tenants).
func (s Secrets) Of(tenant string) []*Secret {
	return slices.DeleteFunc(s.All(), func(x *Secret) bool { return x.Tenant != tenant })
}

// All returns all secrets by tenant and name. It allocates.
func (s Secrets) All() []*Secret {
	return slices.SortedFunc(maps.Values(s.f.secrets.of), func(a, b *Secret) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Name, b.Name))
	})
}

// UnknownSecret is the answer to a caller who names a secret that the tenant does not have. It
// says nothing about other tenants.
func UnknownSecret(tenant, name string, version uint32) error {
	if version != 0 {
		return fault.New(fault.NotFound, "tenant %q has no version %d of a secret %q: `drover secret versions -tenant %s %s` shows them", tenant, version, name, tenant, name)
	}
	return fault.New(fault.NotFound, "tenant %q has no secret %q: `drover secret put -tenant %s %s` stores one", tenant, name, tenant, name)
}

// needed returns an error if a job names a stored secret that its tenant does not have.
func (s Secrets) needed(spec *jobspec.Job) error {
	for i := range spec.Stages {
		for _, x := range spec.Stages[i].Secrets {
			ref, err := jobspec.ParseSecretRef(x.Ref, spec.Tenant)
			if err == nil && ref.Stored && s.Get(spec.Tenant, ref.Name).Version(ref.Version) == nil {
				return fmt.Errorf("stage %q: %w", spec.Stages[i].Name, UnknownSecret(spec.Tenant, ref.Name, ref.Version))
			}
		}
	}
	return nil
}

// apply stores a new version, or the same value under another key.
func (s Secrets) apply(e *droverv1.Entry, sf *droverv1.SecretFact, r *Result) {
	k := secretKey{sf.GetTenant(), sf.GetName()}
	old := s.f.secrets.of[k]
	v := &SecretVersion{Version: sf.GetVersion(), Created: s.f.now, Actor: clip(e.GetActor(), 160), Key: clip(sf.GetKey(), 64),
		Nonce: slices.Clone(sf.GetNonce()), Ciphertext: slices.Clone(sf.GetCiphertext())}
	if r.Err = s.check(k, old, v, sf.GetRotated()); r.Err != nil {
		return
	}
	next := &Secret{Tenant: k.tenant, Name: k.name}
	if old != nil {
		next.Versions = slices.Clone(old.Versions)
	}
	r.Changed = 1
	if sf.GetRotated() {
		i, _ := slices.BinarySearchFunc(next.Versions, v.Version, func(a *SecretVersion, n uint32) int { return cmp.Compare(a.Version, n) })
		v.Created, v.Actor = next.Versions[i].Created, next.Versions[i].Actor
		next.Versions[i] = v
		s.f.secrets.set(k, next)
		return
	}
	next.Versions = append(next.Versions, v)
	s.f.secrets.set(k, next)
	if s.f.secrets.last[k] <= v.Version {
		delete(s.f.secrets.last, k)
	}
	s.f.EventLog().add(e, "secret.put", &Event{Text: secretText(k, v.Version)})
}

// check returns why a version cannot be stored.
func (s Secrets) check(k secretKey, old *Secret, v *SecretVersion, rotated bool) error {
	if rotated {
		if was := old.Version(v.Version); v.Version == 0 || was == nil || len(was.Ciphertext) != len(v.Ciphertext) {
			return fault.New(fault.Conflict, "version %d of secret %q is gone", v.Version, k.name)
		}
		return nil
	}
	next := s.f.secrets.next(k)
	// Entries of an earlier version may have a number that deleted versions had.
	earlier := uint32(1)
	if old != nil {
		earlier = old.newest().Version + 1
	}
	switch st := &s.f.secrets; {
	case s.f.Tenant(k.tenant) == nil:
		return UnknownTenant(k.tenant)
	case !names.Valid(k.name):
		return fault.New(fault.Invalid, "%q is no name of a secret: use letters, digits, '.', '_' and '-', beginning with a letter or digit", clip(k.name, 160))
	case v.Version != next && v.Version != earlier:
		return fault.New(fault.Conflict, "secret %q was changed by somebody else at the same time: put it again", k.name)
	case len(v.Ciphertext) == 0 || len(v.Ciphertext) > MaxSecretValue+64 || len(v.Nonce) > 64:
		return fault.New(fault.Exhausted, "a secret has 1 byte to %d KiB", MaxSecretValue>>10)
	case old == nil && st.number[k.tenant] >= maxTenantSecrets:
		return fault.New(fault.Exhausted, "tenant %q has %d secrets, the limit: delete one with `drover secret delete`", k.tenant, maxTenantSecrets)
	case old != nil && len(old.Versions) >= maxSecretVersions:
		return fault.New(fault.Exhausted, "secret %q has %d versions, the limit: delete old ones with `drover secret delete -version`", k.name, maxSecretVersions)
	case st.bytes[k.tenant]+v.size() > maxTenantBytes:
		return fault.New(fault.Exhausted, "the secrets of tenant %q have more than %d KiB together: delete old ones", k.tenant, maxTenantBytes>>10)
	case st.total+v.size() > maxSecretsBytes:
		return fault.New(fault.Exhausted, "the secrets of all tenants have more than %d MiB together: delete old versions with `drover secret delete -version`", maxSecretsBytes>>20)
	default:
		return nil
	}
}

// applyDeleted deletes a version, or all.
func (s Secrets) applyDeleted(e *droverv1.Entry, d *droverv1.SecretDeletedFact, r *Result) {
	k := secretKey{d.GetTenant(), d.GetName()}
	old := s.f.secrets.of[k]
	if old.Version(d.GetVersion()) == nil {
		r.Err = UnknownSecret(clip(k.tenant, 160), clip(k.name, 160), d.GetVersion())
		return
	}
	next := &Secret{Tenant: k.tenant, Name: k.name}
	if d.GetVersion() != 0 {
		next.Versions = slices.DeleteFunc(slices.Clone(old.Versions), func(v *SecretVersion) bool { return v.Version == d.GetVersion() })
	}
	r.Changed = len(old.Versions) - len(next.Versions)
	if len(next.Versions) == 0 {
		next = nil
	}
	s.f.secrets.set(k, next)
	if newest := old.newest().Version; next.Version(newest) == nil {
		s.f.secrets.used(k, newest)
	}
	s.f.EventLog().add(e, "secret.deleted", &Event{Text: secretText(k, d.GetVersion())})
}

func secretText(k secretKey, version uint32) string {
	text := "secret " + clip(k.name, 160) + " of tenant " + clip(k.tenant, 160)
	if version != 0 {
		text += fmt.Sprintf(", version %d", version)
	}
	return text
}

// CreatedMS returns when the version was put, Unix ms.
func (v *SecretVersion) CreatedMS() int64 { return v.Created / int64(time.Millisecond) }
