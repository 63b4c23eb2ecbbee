package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/secrets"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// secretJob returns a job of one task with secrets in the variables S0, S1 and so on.
func secretJob(name, tenant string, refs ...string) *jobspec.Job {
	j := groupJob(name, 1)
	j.Tenant = tenant
	for i, ref := range refs {
		j.Stages[0].Secrets = append(j.Stages[0].Secrets, jobspec.Secret{Env: fmt.Sprint("S", i), Ref: ref})
	}
	return j
}

func putSecret(ctx context.Context, c droverv1connect.SecretServiceClient, tenant, name, value string) (uint32, error) {
	res, err := c.PutSecret(ctx, connect.NewRequest(&droverv1.PutSecretRequest{Tenant: tenant, Name: name, Value: []byte(value)}))
	if err != nil {
		return 0, wire.FromError(err)
	}
	return res.Msg.Version, nil
}

// getSecrets asks as a node for the secrets of an attempt.
func getSecrets(ctx context.Context, n *coordtest.Node, key *droverv1.AttemptKey) (map[string]string, error) {
	id, epoch := n.Registered()
	res, err := n.Client.GetSecrets(ctx, connect.NewRequest(&droverv1.GetSecretsRequest{Node: id, Epoch: epoch, Key: key}))
	if err != nil {
		return nil, wire.FromError(err)
	}
	out := map[string]string{}
	for _, x := range res.Msg.Secrets {
		out[x.Env] = string(x.Value)
	}
	return out, nil
}

// awaitAttempt waits until a node is to run the first task of a job.
func (b *testCluster) awaitAttempt(n *coordtest.Node, job uint64) (key *droverv1.AttemptKey) {
	b.t.Helper()
	b.waitUntil("the node is to run the job", func() bool {
		for _, w := range n.Wanted() {
			if w.Key.Job == job && w.Goal == droverv1.Goal_GOAL_RUN {
				key = w.Key
			}
		}
		return key != nil
	})
	return key
}

func addKey(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	id, err := secrets.AddKey(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestSecretsAreKeptEncryptedAlone looks for values in all that the coordinator has on
// disk, saves and says, and finds them at the node that is to run the task alone.
func TestSecretsAreKeptEncryptedAlone(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) {
		c.SnapshotEntries, c.SecretKeys = 10, filepath.Join(filepath.Dir(c.Dir), "keys", "k")
	})
	keyFile := b.cfg.SecretKeys
	addKey(t, keyFile)
	root, op := droverv1connect.NewClientServiceClient(as("user/root"), base), droverv1connect.NewSecretServiceClient(as("user/root"), base)
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "a"}, {Name: "b"}}})); err != nil {
		t.Fatal(err)
	}
	values := []string{"plaintext-of-a-one", "plaintext-of-a-two", "plaintext-of-b"}
	for i, tenant := range []string{"a", "a", "b"} {
		if v, err := putSecret(b.ctx, op, tenant, "token", values[i]); err != nil || v != []uint32{1, 2, 1}[i] {
			t.Fatalf("put %d: version %d, %v", i, v, err)
		}
	}
	n1 := coordtest.New(droverv1connect.NewNodeServiceClient(as("node/n1"), base), coordtest.Info("n1"), b.fs, coordtest.Hang)
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() { defer close(done); n1.Run(ctx) }()
	stopNode := func() { cancel(); <-done }
	t.Cleanup(stopNode)
	job := b.submit(secretJob("j", "a", "secret:token", "secret:token@1", "file:other"))
	key := b.awaitAttempt(n1, job)
	got, err := getSecrets(b.ctx, n1, key)
	if err != nil || len(got) != 2 || got["S0"] != values[1] || got["S1"] != values[0] {
		t.Fatalf("the node got %q, %v", got, err)
	}
	said := checkWhoGetsNoSecrets(t, b, n1, as, base, key)
	for i := range 30 { // enough for a snapshot
		b.submit(groupJob(fmt.Sprint("k", i), 1))
	}
	for _, bad := range []*jobspec.Job{secretJob("x", "a", "secret:nothing"), secretJob("x", "b", "secret:token@2"), secretJob("x", "nobody", "secret:token")} {
		_, err := b.trySubmit(bad, "")
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("a job with a secret that its tenant does not have: %v", err)
		}
		said += fmt.Sprint(err)
	}
	said += b.job("j").String() + b.eventLog() + sayEverything(t, b, as, base, op)
	if strings.Contains(eventsAs(t, as("user/eve"), base), "secret.put") {
		t.Error("a user without rights sees events of secrets")
	}
	stopNode()
	b.kill()
	files := 0
	err = filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, v := range values {
			if bytes.Contains(raw, []byte(v)) {
				t.Errorf("%q is in %s", v, path)
			}
		}
		if bytes.Contains(raw, []byte("token")) {
			files++
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%v; the secret's name is in %d files", err, files)
	}
	if strings.Contains(said, "plaintext") {
		t.Error("a value was said")
	}
	for _, want := range []string{"secret token of tenant a, version 2", "GetSecrets", "PutSecret"} {
		if !strings.Contains(said, want) {
			t.Errorf("neither an event nor the audit log has %q", want)
		}
	}
}

// eventsAs returns the events that a caller sees.
func eventsAs(t *testing.T, h *http.Client, base string) (out string) {
	t.Helper()
	stream, err := droverv1connect.NewClientServiceClient(h, base).Events(t.Context(), connect.NewRequest(&droverv1.EventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		out += stream.Msg().String()
	}
	if out == "" || stream.Err() != nil {
		t.Errorf("events %q, %v", out, stream.Err())
	}
	return out
}

// checkWhoGetsNoSecrets asks for an attempt's secrets as callers who may not have them, and
// returns what they were told.
func checkWhoGetsNoSecrets(t *testing.T, b *testCluster, n1 *coordtest.Node, as func(string) *http.Client, base string, key *droverv1.AttemptKey) (said string) {
	t.Helper()
	refuse := func(what string, values map[string]string, err error, want error) {
		t.Helper()
		if len(values) > 0 || !errors.Is(err, want) {
			t.Errorf("%s: %q, %v; want %v", what, values, err, want)
		}
		said += fmt.Sprint(err)
	}
	id, epoch := n1.Registered()
	ask := func(who string, epoch uint64, k *droverv1.AttemptKey) (map[string]string, error) {
		res, err := droverv1connect.NewNodeServiceClient(as(who), base).GetSecrets(b.ctx, connect.NewRequest(&droverv1.GetSecretsRequest{Node: id, Epoch: epoch, Key: k}))
		if err != nil {
			return nil, wire.FromError(err)
		}
		out := map[string]string{}
		for _, x := range res.Msg.Secrets {
			out[x.Env] = string(x.Value)
		}
		return out, nil
	}
	for _, who := range []string{"node/n2", "user/root", "coordinator/other"} {
		v, err := ask(who, epoch, key)
		refuse(who, v, err, fault.Denied)
	}
	v, err := ask("node/n1", epoch+1, key)
	refuse("another epoch", v, err, fault.Unavailable)
	for what, change := range map[string]func(*droverv1.AttemptKey){
		"an older run": func(k *droverv1.AttemptKey) { k.Run-- }, "another task": func(k *droverv1.AttemptKey) { k.Task++ },
		"another stage": func(k *droverv1.AttemptKey) { k.Stage-- }, "another job": func(k *droverv1.AttemptKey) { k.Job += 100 },
	} {
		k := &droverv1.AttemptKey{Job: key.Job, Stage: key.Stage, Task: key.Task, Attempt: key.Attempt, Run: key.Run}
		change(k)
		v, err := ask("node/n1", epoch, k)
		refuse(what, v, err, fault.Denied)
	}
	return said
}

// sayEverything returns lists, metrics, the audit log and an archive of the coordinator.
func sayEverything(t *testing.T, b *testCluster, as func(string) *http.Client, base string, op droverv1connect.SecretServiceClient) string {
	t.Helper()
	list, err := op.ListSecrets(b.ctx, connect.NewRequest(&droverv1.ListSecretsRequest{Tenant: "a"}))
	if err != nil || len(list.Msg.Secrets) != 1 || len(list.Msg.Secrets[0].Versions) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	said := list.Msg.String()
	res, err := as("user/root").Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	audit, err := os.ReadFile(filepath.Join(b.cfg.Dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := droverv1connect.NewOperatorServiceClient(as("user/root"), base).SaveSnapshot(b.ctx, connect.NewRequest(&droverv1.SaveSnapshotRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	saved := 0
	for stream.Receive() {
		m := stream.Msg().String()
		saved += len(m)
		said += m
	}
	if stream.Err() != nil || saved < 1000 {
		t.Errorf("%d bytes saved, %v", saved, stream.Err())
	}
	return said + string(text) + string(audit)
}

// TestSecretsWaitForTheirKey takes the key away while a task waits for its secrets:
// nothing fails, and it goes on when the key is back.
func TestSecretsWaitForTheirKey(t *testing.T) {
	b := newTestCluster(t, nil)
	op := droverv1connect.NewSecretServiceClient(b.http, "http://c")
	path := filepath.Join(b.cfg.Dir, SecretKeyFile)
	if _, err := putSecret(b.ctx, op, "default", "x", "value"); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "drover secret key") {
		t.Errorf("put without a key: %v", err)
	}
	addKey(t, path)
	if _, err := putSecret(b.ctx, op, "default", "x", "value"); err != nil {
		t.Fatal(err)
	}
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	warning := func() string {
		res, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(res.Msg.Warnings, "\n")
	}
	if got := warning(); strings.Contains(got, "secrets") {
		t.Errorf("status: %s", got)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	key := b.awaitAttempt(n, b.submit(secretJob("j", "default", "secret:x")))
	if v, err := getSecrets(b.ctx, n, key); len(v) > 0 || !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "waits for its secrets") {
		t.Errorf("without the key: %q, %v", v, err)
	}
	if got := warning(); !strings.Contains(got, "tasks that need secrets wait") {
		t.Errorf("status without the key: %s", got)
	}
	addKey(t, path) // another one
	if v, err := getSecrets(b.ctx, n, key); len(v) > 0 || !errors.Is(err, fault.Unavailable) {
		t.Errorf("with another key: %q, %v", v, err)
	}
	if got := warning(); !strings.Contains(got, "their key") {
		t.Errorf("status with another key: %s", got)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if v, err := getSecrets(b.ctx, n, key); err != nil || v["S0"] != "value" {
		t.Errorf("with the key again: %q, %v", v, err)
	}
}

func TestSecretsAreEncryptedWithTheNewestKey(t *testing.T) {
	b := newTestCluster(t, nil)
	op := droverv1connect.NewSecretServiceClient(b.http, "http://c")
	path := filepath.Join(b.cfg.Dir, SecretKeyFile)
	addKey(t, path)
	for i := range 3 {
		if _, err := putSecret(b.ctx, op, "default", "x", fmt.Sprint("value", i)); err != nil {
			t.Fatal(err)
		}
	}
	added := addKey(t, path)
	rotate := func() *droverv1.RotateSecretsResponse {
		res, err := op.RotateSecrets(b.ctx, connect.NewRequest(&droverv1.RotateSecretsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	if r := rotate(); r.Key != added || r.Rotated != 3 || r.Versions != 3 {
		t.Errorf("rotated: %v", r)
	}
	if r := rotate(); r.Rotated != 0 {
		t.Errorf("rotated again: %v", r)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, newest, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(path, []byte(newest), 0o600); err != nil {
		t.Fatal(err)
	}
	n, _ := b.addNode(coordtest.Info("n1"), coordtest.Hang)
	key := b.awaitAttempt(n, b.submit(secretJob("j", "default", "secret:x", "secret:x@1")))
	if v, err := getSecrets(b.ctx, n, key); err != nil || v["S0"] != "value2" || v["S1"] != "value0" {
		t.Errorf("with the newest key alone: %q, %v", v, err)
	}
	if _, err := op.DeleteSecret(b.ctx, connect.NewRequest(&droverv1.DeleteSecretRequest{Tenant: "default", Name: "x", Version: 1})); err != nil {
		t.Fatal(err)
	}
	if _, err := getSecrets(b.ctx, n, key); !errors.Is(err, fault.NotFound) {
		t.Errorf("a version that was deleted: %v", err)
	}
}

// TestSecretsWithThreeCoordinators loses the leader, alone in having the key.
func TestSecretsWithThreeCoordinators(t *testing.T) {
	t.Parallel()
	s := newTestServers(t, 3, nil)
	leader := s.awaitLeader()
	addKey(t, filepath.Join(s.folder(leader), SecretKeyFile))
	h, base, retry := s.as("user/root")
	op := droverv1connect.NewSecretServiceClient(h, base, retry)
	s.waitUntil("the secret is put", func() bool { _, err := putSecret(t.Context(), op, "default", "x", "value"); return err == nil })
	n := s.addNode("n1", coordtest.Hang)
	s.waitForNodes()
	key := s.awaitAttempt(n, s.submit(secretJob("j", "default", "secret:x")))
	s.kill(leader)
	s.waitUntil("the task waits for a key at the next leader", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		v, err := getSecrets(ctx, n, key)
		if len(v) > 0 {
			t.Fatalf("a leader without the key gave %q", v)
		}
		return err != nil && strings.Contains(err.Error(), "waits for its secrets")
	})
	text, err := os.ReadFile(filepath.Join(s.folder(leader), SecretKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range s.ids {
		if err := os.WriteFile(filepath.Join(s.folder(id), SecretKeyFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.waitUntil("it has its secrets", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		v, err := getSecrets(ctx, n, key)
		return err == nil && v["S0"] == "value"
	})
	if j := s.job("j"); j == nil || ended(j.Job.State) {
		t.Errorf("the job did not wait: %v", j)
	}
}
