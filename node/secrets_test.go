package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
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
	source := &secretSource{dir: dir, node: "n1"}
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
		{"a", "secret:token", "", fault.Invalid},
	} {
		got, err := source.read(tc.tenant, tc.ref)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("tenant %q, %q: %q, %v; want %q, %v", tc.tenant, tc.ref, got, err, tc.want, tc.err)
		}
		if err != nil && strings.Contains(err.Error(), "b's alone") {
			t.Errorf("the error has the value: %v", err)
		}
	}
}

// secretCoordinator answers for stored secrets.
type secretCoordinator struct {
	*fakeCoordinator

	answers func(try int) (*droverv1.GetSecretsResponse, error)
	tries   atomic.Int64
}

func (s *secretCoordinator) GetSecrets(_ context.Context, r *connect.Request[droverv1.GetSecretsRequest]) (*connect.Response[droverv1.GetSecretsResponse], error) {
	if r.Msg.GetNode() != 1 || r.Msg.GetKey().GetAttempt() == 0 {
		return nil, wire.Error(fault.New(fault.Denied, "another node or attempt"))
	}
	m, err := s.answers(int(s.tries.Add(1)))
	if err != nil {
		return nil, wire.Error(err)
	}
	return connect.NewResponse(m), nil
}

// newSecretNode returns a node whose coordinator answers so, with a folder in memory.
func newSecretNode(t *testing.T, programs map[string]fake.Program, answers func(try int) (*droverv1.GetSecretsResponse, error)) (*testNode, *secretCoordinator) {
	t.Helper()
	b := newTestNode(t, programs)
	c := &secretCoordinator{fakeCoordinator: b.fakeCoordinator, answers: answers}
	_, h := droverv1connect.NewNodeServiceHandler(c)
	srv := httptest.NewServer(h)
	t.Cleanup(func() { b.stopDaemon(); b.cutStreams(); srv.CloseClientConnections(); srv.Close() })
	b.config.Coordinator = droverv1connect.NewNodeServiceClient(srv.Client(), srv.URL)
	memory, err := os.MkdirTemp("/dev/shm", "drover-test-")
	if err != nil {
		t.Skip("not proved here: would prove that secrets are passed in memory: /dev/shm cannot be written:", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(memory) })
	b.config.secretMount = filepath.Join(memory, "secrets")
	return b, c
}

// TestSecretsArePassedInMemoryAlone waits for a coordinator without its key, and then
// looks for the values everywhere but in the folder in memory, which goes with the
// container.
func TestSecretsArePassedInMemoryAlone(t *testing.T) {
	const stored, file = "plaintext-stored", "plaintext-file"
	got, goOn := make(chan *fake.Process), make(chan struct{})
	b, c := newSecretNode(t, map[string]fake.Program{harnessMount + "/drover": func(ctx context.Context, p *fake.Process) int {
		got <- p
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return 0
	}}, func(try int) (*droverv1.GetSecretsResponse, error) {
		if try <= maxTries+1 {
			return nil, fault.New(fault.Unavailable, "no key (plaintext is not in an error)")
		}
		return &droverv1.GetSecretsResponse{Secrets: []*droverv1.SecretValue{{Env: "STORED", Value: []byte(stored)}}}, nil
	})
	writeSecret(t, filepath.Join(b.config.Data, "secrets"), "t", "x", file+"\n")
	b.start()
	w := with(groupTask(0, "printenv", "STORED"), func(w *droverv1.WantedAttempt) {
		w.Spec.Secrets = []*droverv1.SecretRef{{Env: "STORED", Ref: "secret:x"}, {Env: "FILE", Ref: "file:x"}}
	})
	b.put(w)
	poll(t, "the report says why the task waits", func() bool { return strings.Contains(b.get(w).GetStatus(), "no key") })
	p := <-got
	if n := int(c.tries.Load()); n != maxTries+2 {
		t.Errorf("%d tries, want %d", n, maxTries+2)
	}
	if !slices.Equal(p.Spec.Args[1:], []string{"harness", "with-secrets", secretMount + "/env", "printenv", "STORED"}) {
		t.Errorf("arguments %q", p.Spec.Args)
	}
	if said := fmt.Sprint(p.Spec); strings.Contains(said, "plaintext") {
		t.Errorf("a value is in the specification: %s", said)
	}
	i := slices.IndexFunc(p.Spec.Mounts, func(m runtime.Mount) bool { return m.Target == secretMount })
	if i < 0 || !p.Spec.Mounts[i].ReadOnly {
		t.Fatalf("mounts %v", p.Spec.Mounts)
	}
	raw, err := os.ReadFile(filepath.Join(p.Spec.Mounts[i].Source, "env"))
	if want := "FILE=" + file + "\x00STORED=" + stored + "\x00"; err != nil || string(raw) != want {
		t.Errorf("the file in memory has %q, %v; want %q", raw, err, want)
	}
	poll(t, "the task is reported as running", func() bool { return b.get(w).GetPhase() == running })
	if said := b.get(w).String(); strings.Contains(said, stored) || strings.Contains(said, file) {
		t.Errorf("a value is in a report: %s", said)
	}
	close(goOn)
	b.await(t, w, succeeded)
	poll(t, "nothing in memory", func() bool {
		left, err := os.ReadDir(b.config.secretMount)
		return err == nil && len(left) == 0
	})
	if err := os.Remove(filepath.Join(b.config.Data, "secrets", "t", "x")); err != nil { // the operator's own
		t.Fatal(err)
	}
	err = filepath.WalkDir(b.config.Data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if bytes.Contains(raw, []byte(stored)) || bytes.Contains(raw, []byte(file)) {
			t.Errorf("a value is in %s", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Values of a task that ends before it has a container do not stay in memory until the job's end.
func TestSecretsOfATaskThatDoesNotStart(t *testing.T) {
	b, _ := newSecretNode(t, programs(), func(int) (*droverv1.GetSecretsResponse, error) {
		return &droverv1.GetSecretsResponse{Secrets: []*droverv1.SecretValue{{Env: "STORED", Value: []byte("x")}}}, nil
	})
	b.engine.Inject(fake.Fault{Verb: fake.Create, Err: errors.New("no container today")})
	b.start()
	w := with(groupTask(0, "true"), func(w *droverv1.WantedAttempt) {
		w.Spec.Secrets = []*droverv1.SecretRef{{Env: "STORED", Ref: "secret:x"}}
	})
	b.put(w)
	b.await(t, w, failed)
	poll(t, "no value in memory", func() bool {
		left, err := os.ReadDir(b.config.secretMount)
		return err == nil && len(left) == 0
	})
}

// TestSecretsThatCannotBeHad ends a task whose secret was deleted, and one that could
// only be passed on a disk.
func TestSecretsThatCannotBeHad(t *testing.T) {
	b, _ := newSecretNode(t, programs(), func(int) (*droverv1.GetSecretsResponse, error) {
		return nil, fault.New(fault.NotFound, "tenant %q has no secret %q", "t", "x")
	})
	b.start()
	w := with(groupTask(0, "true"), func(w *droverv1.WantedAttempt) {
		w.Spec.Secrets = []*droverv1.SecretRef{{Env: "STORED", Ref: "secret:x"}}
	})
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_SPEC || !strings.Contains(s.GetMessage(), "has no secret") {
		t.Errorf("a secret that was deleted: %v %s", s.GetCause(), s.GetMessage())
	}
	b.stopDaemon()
	var st unix.Statfs_t
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Statfs(disk, &st); err != nil || int64(st.Type) == unix.TMPFS_MAGIC {
		t.Skip("not proved here: would prove that no secret goes to a disk: the folder for temporary files is in memory")
	}
	x := &attemptSecrets{dir: filepath.Join(disk, "x"), cfg: &Config{secretMount: disk, Info: &droverv1.NodeInfo{Name: "n1"}}}
	if err := x.makeDir(1); !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "on a disk") {
		t.Errorf("a folder on a disk: %v", err)
	}
}
