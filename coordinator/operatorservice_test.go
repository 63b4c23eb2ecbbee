package coordinator

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/backup"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
)

// damageBlob changes the stored bytes of a file in the data folder of a coordinator.
func damageBlob(t *testing.T, dir, digest string) {
	t.Helper()
	h := strings.TrimPrefix(digest, "sha256:")
	path := filepath.Join(dir, "blobs", "sha256", h[:2], h)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// saveArchive saves an archive with all files, and returns what its manifest says.
func saveArchive(t *testing.T, op droverv1connect.OperatorServiceClient) *backup.Manifest {
	t.Helper()
	stream, err := op.SaveSnapshot(t.Context(), connect.NewRequest(&droverv1.SaveSnapshotRequest{AllFiles: true}))
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	for stream.Receive() {
		archive.Write(stream.Msg().GetData())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	_ = stream.Close()
	m, err := backup.Read(&archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func hasMember(m *backup.Manifest, digest string) bool {
	return slices.ContainsFunc(m.Members, func(f backup.Member) bool { return f.Name == "blobs/"+strings.TrimPrefix(digest, "sha256:") })
}

// TestAnArchiveHoldsNoDamagedFile damages an uploaded file before an archive is saved: the archive has another coordinator's
// copy of it, or says that it is missing, and can be restored.
func TestAnArchiveHoldsNoDamagedFile(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		b := newTestCluster(t, nil)
		op := droverv1connect.NewOperatorServiceClient(b.http, "http://c")
		put := func(text string) (digest string) {
			b.waitUntil("a file is stored", func() (ok bool) {
				digest, ok = putFile(b.ctx, b.client, text)
				return ok
			})
			return digest
		}
		digest, whole := put("what a job needs"), put("whole")
		if m := saveArchive(t, op); !hasMember(m, digest) || len(m.MissingFiles) > 0 {
			t.Fatalf("before the damage: %+v", m)
		}
		damageBlob(t, b.cfg.Dir, digest)
		for range 2 { // also once it is moved aside
			m := saveArchive(t, op)
			if hasMember(m, digest) || !hasMember(m, whole) || !slices.Equal(m.MissingFiles, []string{digest}) {
				t.Fatalf("%+v", m)
			}
		}
		if aside, _ := filepath.Glob(filepath.Join(b.cfg.Dir, "blobs", "damaged", "*")); len(aside) != 1 {
			t.Errorf("moved aside: %v", aside)
		}
		if log := b.eventLog(); !strings.Contains(log, "file.damaged") {
			t.Errorf("the events do not name the damage:\n%s", log)
		}
	})
	t.Run("with others", func(t *testing.T) {
		s := newTestServers(t, 3, nil)
		digest := s.upload("what a job needs")
		leader := s.awaitLeader()
		s.waitUntil("all have the file", func() bool {
			return !slices.ContainsFunc(s.ids, func(id string) bool { return !s.hasFile(id, digest) })
		})
		damageBlob(t, s.folder(leader), digest)
		if m := saveArchive(t, s.operator); !hasMember(m, digest) || len(m.MissingFiles) > 0 {
			t.Errorf("%+v", m)
		}
		if !s.hasFile(leader, digest) {
			t.Error("the file was not fetched again")
		}
	})
}

// TestAnUnfinishedRestoreDoesNotStart starts coordinators on what a restore leaves when it is cut short: neither a new, empty
// cluster nor one that does not know that it was restored begins there.
func TestAnUnfinishedRestoreDoesNotStart(t *testing.T) {
	for _, name := range []string{"facts.restoring", "raft.restoring"} {
		for _, log := range []bool{false, true} {
			dir := t.TempDir()
			if log {
				if err := replica.Seed(filepath.Join(dir, "raft"), replica.SeedState{ID: "c1", Index: 1, Facts: strings.NewReader("")}); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := ListenLocal(filepath.Join(dir, "s"))
			if err != nil {
				t.Fatal(err)
			}
			c, err := open(t.Context(), Config{Dir: dir, Local: l, NoSync: true})
			if err == nil {
				err = c.close()
			}
			_ = l.Close()
			if !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "restore the archive again") {
				t.Errorf("%s, with a log: %t: %v", name, log, err)
			}
		}
	}
}
