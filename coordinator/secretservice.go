package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/secrets"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// SecretKeyFile is the default name of the key file, in the coordinator's folder.
const SecretKeyFile = "secrets.key"

// maxPutTries bounds the tries to store a version while others store versions of the same secret.
const maxPutTries = 5

func openSecretKeys(cfg Config) *secrets.Keys {
	if cfg.SecretKeys != "" {
		return secrets.Follow(cfg.SecretKeys)
	}
	return secrets.Follow(filepath.Join(cfg.Dir, SecretKeyFile))
}

// secretService serves `drover secret`. It returns no values: only nodeService.GetSecrets decrypts
// them, for nodes.
type secretService struct{ c *core }

var _ droverv1connect.SecretServiceHandler = (*secretService)(nil)

// PutSecret encrypts a value and stores it as the next version.
func (s *secretService) PutSecret(ctx context.Context, req *connect.Request[droverv1.PutSecretRequest]) (*connect.Response[droverv1.PutSecretResponse], error) {
	m := req.Msg
	if err := s.c.rights.needTenant(ctx, mayOperate, m.GetTenant()); err != nil {
		return nil, err
	}
	if err := s.c.disk.requireSpace(0); err != nil {
		return nil, err
	}
	switch v := m.GetValue(); {
	case len(v) == 0 || len(v) > facts.MaxSecretValue:
		return nil, fault.New(fault.Invalid, "a secret has 1 byte to %d KiB, this one has %d bytes", facts.MaxSecretValue>>10, len(v))
	case bytes.IndexByte(v, 0) >= 0:
		return nil, fault.New(fault.Invalid, "a secret becomes an environment variable, so it cannot have zero bytes")
	}
	ring, err := s.c.secretKeys.Ring()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "this coordinator can store no secrets: %v", err)
	}
	for try := 1; ; try++ {
		version, err := s.putVersion(ctx, ring, m)
		if err == nil {
			return connect.NewResponse(&droverv1.PutSecretResponse{Version: version}), nil
		}
		if !errors.Is(err, fault.Conflict) || try == maxPutTries {
			return nil, err
		}
	}
}

// putVersion stores a value under a number that no version of this name has had.
func (s *secretService) putVersion(ctx context.Context, ring *secrets.Keyring, m *droverv1.PutSecretRequest) (uint32, error) {
	id := secrets.ID{Tenant: m.GetTenant(), Name: m.GetName()}
	s.c.view(func(f *facts.Facts) {
		id.Version = facts.SecretsOf(f).Next(id.Tenant, id.Name)
	})
	res, err := s.c.propose(ctx, caller(ctx).name, secretEntry(id, ring.Seal(id, m.GetValue()), false))
	return id.Version, errors.Join(err, res.Err)
}

func secretEntry(id secrets.ID, x secrets.Sealed, rotated bool) *droverv1.Entry {
	return &droverv1.Entry{Body: &droverv1.Entry_Secret{Secret: &droverv1.SecretFact{Tenant: id.Tenant, Name: id.Name, Version: id.Version,
		Key: x.Key, Nonce: x.Nonce, Ciphertext: x.Ciphertext, Rotated: rotated}}}
}

// ListSecrets returns names and versions of a tenant's secrets.
func (s *secretService) ListSecrets(ctx context.Context, req *connect.Request[droverv1.ListSecretsRequest]) (*connect.Response[droverv1.ListSecretsResponse], error) {
	tenant := req.Msg.GetTenant()
	if err := s.c.rights.needTenant(ctx, maySubmit, tenant); err != nil {
		return nil, err
	}
	res := &droverv1.ListSecretsResponse{}
	s.c.view(func(f *facts.Facts) {
		for _, x := range facts.SecretsOf(f).Of(tenant) {
			out := &droverv1.Secret{Name: x.Name}
			for _, v := range x.Versions {
				out.Versions = append(out.Versions, &droverv1.SecretVersion{Version: v.Version, CreatedMs: v.CreatedMS(), CreatedBy: v.Actor, Key: v.Key})
			}
			res.Secrets = append(res.Secrets, out)
		}
	})
	return connect.NewResponse(res), nil
}

// DeleteSecret deletes a version, or all.
func (s *secretService) DeleteSecret(ctx context.Context, req *connect.Request[droverv1.DeleteSecretRequest]) (*connect.Response[droverv1.DeleteSecretResponse], error) {
	m := req.Msg
	if err := s.c.rights.needTenant(ctx, mayOperate, m.GetTenant()); err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_SecretDeleted{SecretDeleted: &droverv1.SecretDeletedFact{Tenant: m.GetTenant(), Name: m.GetName(), Version: m.GetVersion()}}}
	res, err := s.c.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.DeleteSecretResponse{Versions: int32(res.Changed)}), nil
}

// RotateSecrets encrypts again every version that is not encrypted with the newest key. It skips a
// version that changes meanwhile. It may be repeated.
func (s *secretService) RotateSecrets(ctx context.Context, _ *connect.Request[droverv1.RotateSecretsRequest]) (*connect.Response[droverv1.RotateSecretsResponse], error) {
	if err := s.c.rights.needOperator(ctx, "rotate the keys of secrets"); err != nil {
		return nil, err
	}
	ring, err := s.c.secretKeys.Ring()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "this coordinator can decrypt no secrets: %v", err)
	}
	var all []*facts.Secret
	s.c.view(func(f *facts.Facts) { all = facts.SecretsOf(f).All() })
	out := &droverv1.RotateSecretsResponse{Key: ring.Current()}
	for _, x := range all {
		for _, v := range x.Versions {
			out.Versions++
			if v.Key == ring.Current() {
				continue
			}
			id := secrets.ID{Tenant: x.Tenant, Name: x.Name, Version: v.Version}
			value, err := ring.Open(id, sealed(v))
			if err != nil {
				return nil, err
			}
			res, err := s.c.propose(ctx, caller(ctx).name, secretEntry(id, ring.Seal(id, value), true))
			clear(value)
			if err = errors.Join(err, res.Err); err != nil && !errors.Is(err, fault.Conflict) {
				return nil, err
			}
			out.Rotated++
		}
	}
	return connect.NewResponse(out), nil
}

func sealed(v *facts.SecretVersion) secrets.Sealed {
	return secrets.Sealed{Key: v.Key, Nonce: v.Nonce, Ciphertext: v.Ciphertext}
}

// GetSecrets returns the values of an attempt's stored secrets to the node that is to run the
// attempt.
func (s *nodeService) GetSecrets(ctx context.Context, req *connect.Request[droverv1.GetSecretsRequest]) (*connect.Response[droverv1.GetSecretsResponse], error) {
	n, again, err := s.session(ctx, req.Msg.GetNode(), req.Msg.GetEpoch())
	if err != nil {
		return nil, err
	}
	if again {
		return nil, fault.New(fault.Unavailable, "the node is not registered in that epoch: register again")
	}
	list, err := s.secretsOf(n, req.Msg.GetKey())
	if err != nil || len(list) == 0 {
		return connect.NewResponse(&droverv1.GetSecretsResponse{}), err
	}
	ring, err := s.core.secretKeys.Ring()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the task waits for its secrets, which the leading coordinator cannot decrypt: %v", err)
	}
	res := &droverv1.GetSecretsResponse{}
	for _, x := range list {
		value, err := ring.Open(x.id, sealed(x.version))
		if err != nil {
			return nil, err
		}
		res.Secrets = append(res.Secrets, &droverv1.SecretValue{Env: x.env, Value: value})
	}
	return connect.NewResponse(res), nil
}

// attemptSecret is a secret of an attempt.
type attemptSecret struct {
	env     string
	id      secrets.ID
	version *facts.SecretVersion
}

// secretsOf returns the stored secrets of an attempt that a node is to run now. A reference without
// a version means the newest version, even one stored after the submission.
func (s *nodeService) secretsOf(n *facts.Node, key *droverv1.AttemptKey) (list []attemptSecret, err error) {
	k := facts.KeyOf(key)
	s.core.view(func(f *facts.Facts) {
		a := f.Attempt(k)
		if a == nil || a.Node != n.ID || a.Epoch != n.Epoch || a.Run != key.GetRun() || a.State != facts.AttemptLive {
			err = fault.New(fault.Denied, "node %s is not to run attempt %d.%d.%d.%d", n.Info.GetName(), k.Job, k.Stage, k.Task, k.Attempt)
			return
		}
		j := f.Job(k.Job)
		for _, x := range j.Spec.Stages[k.Stage].Secrets {
			ref, e := jobspec.ParseSecretRef(x.Ref, j.Spec.Tenant)
			if e != nil || !ref.Stored {
				continue
			}
			v := facts.SecretsOf(f).Get(j.Spec.Tenant, ref.Name).Version(ref.Version)
			if v == nil {
				err = facts.UnknownSecret(j.Spec.Tenant, ref.Name, ref.Version)
				return
			}
			list = append(list, attemptSecret{x.Env, secrets.ID{Tenant: j.Spec.Tenant, Name: ref.Name, Version: v.Version}, v})
		}
	})
	return list, err
}

// secretWarning returns why this coordinator cannot decrypt the stored secrets, "" if it can.
func (c *core) secretWarning() string {
	keys := map[string]bool{}
	c.view(func(f *facts.Facts) {
		for _, x := range facts.SecretsOf(f).All() {
			for _, v := range x.Versions {
				keys[v.Key] = true
			}
		}
	})
	if len(keys) == 0 {
		return ""
	}
	ring, err := c.secretKeys.Ring()
	if err != nil {
		return fmt.Sprintf("tasks that need secrets wait, since this coordinator cannot decrypt them: %v", err)
	}
	for k := range keys {
		if !ring.Has(k) {
			return fmt.Sprintf("tasks that need some of the secrets wait: their key %s is not in %s; copy the file from the coordinator where it was added", k, c.secretKeys.Path())
		}
	}
	return ""
}
