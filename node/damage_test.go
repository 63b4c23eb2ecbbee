package node

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/runtime/fake"
)

// damageFile calls check each time after the file was damaged, and puts it back. check
// reports whether the damage was found. At least a part of them must be.
func damageFile(t *testing.T, path string, check func(what string) (found bool)) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, rounds := 0, bitrot.Rounds(t, 1)
	for range rounds {
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if check(what) {
			found++
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d found", found, rounds)
	if found < rounds/2 {
		t.Errorf("%d of %d damages were found: the test shows little", found, rounds)
	}
}

// A damaged revocation list is named and not used, and the coordinator's takes its place,
// in the file too.
func TestDamageOfTheRevocationListIsNamedAndMended(t *testing.T) {
	dir, own := t.TempDir(), t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindNode, Name: "n1", Hosts: []string{"127.0.0.1"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.ReadCertificate(filepath.Join(dir, "n1.pem"))
	if err != nil {
		t.Fatal(err)
	}
	files := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "n1.pem"), Key: filepath.Join(dir, "n1.key")}
	member := func() *pki.Member {
		m, err := files.Open(pki.KindNode)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	fresh := func() *peerGuard {
		return newPeerGuard(&Config{Certificate: member(), Data: own, Log: slog.New(slog.DiscardHandler)})
	}
	if _, err := pki.Revoke(dir, []*big.Int{leaf.SerialNumber}, time.Now()); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "ca.crl"), filepath.Join(own, nameCRL)); err != nil { // no daemon has it beside ca.pem
		t.Fatal(err)
	}
	damageFile(t, filepath.Join(own, nameCRL), func(what string) bool {
		g := fresh()
		err := g.loadCRL()
		if err == nil && g.member.Revoked(leaf) {
			return false
		}
		if err == nil || !strings.Contains(err.Error(), nameCRL) || g.member.CRL() != nil {
			t.Fatalf("%s: the file is not named, or was used: %v", what, err)
		}
		g.fetchCRL = func(context.Context) ([]byte, error) { return list, nil }
		if err := g.updateCRL(t.Context()); err != nil || !g.member.Revoked(leaf) {
			t.Fatalf("%s: the coordinator's list is not used: %v", what, err)
		}
		if next := fresh(); next.loadCRL() != nil || !next.member.Revoked(leaf) {
			t.Fatalf("%s: the file is still damaged", what)
		}
		return true
	})
}

// A damaged result of the probe is not used: the node probes again.
func TestDamageOfTheProbesResultIsNotBelieved(t *testing.T) {
	cfg := &Config{Data: t.TempDir(), Info: &droverv1.NodeInfo{Versions: map[string]string{"kernel": "6.1"}}, Driver: fake.New(time.Now, nil).Driver(), Log: slog.New(slog.DiscardHandler)}
	b := &prober{cfg: cfg}
	b.set(&probeResult{Version: probeVersion, Environment: b.environment(), Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN},
		Speeds: &droverv1.SuspendSpeed{FreezeUs: 1234, CheckpointBps: 99_000_000}, Notes: []string{"no swap"}})
	text, err := linesum.Marshal(b.result)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.Data, probeFile)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	want := b.info()
	damageFile(t, path, func(what string) bool {
		again := &prober{cfg: cfg}
		if !again.load() {
			return true
		}
		if !proto.Equal(again.info(), want) {
			t.Fatalf("%s: %v, want %v", what, again.info(), want)
		}
		return false
	})
}

// A program of tasks that the disk has damaged is written again when the daemon starts.
func TestDamageOfAnInstalledProgramIsMended(t *testing.T) {
	data, program := t.TempDir(), filepath.Join(t.TempDir(), "harness")
	whole := bytes.Repeat([]byte("program "), 2000)
	if err := os.WriteFile(program, whole, 0o700); err != nil {
		t.Fatal(err)
	}
	path, err := installProgram(data, program, true)
	if err != nil {
		t.Fatal(err)
	}
	damageFile(t, path, func(what string) bool {
		damaged, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		again, err := installProgram(data, program, true)
		if err != nil || again != path {
			t.Fatalf("%s: %s, %v", what, again, err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, whole) {
			t.Fatalf("%s: the program that tasks run is another one (%v)", what, err)
		}
		return !bytes.Equal(damaged, whole)
	})
}
