package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	colinmarc "github.com/colinmarc/hdfs/v2"
	"go.uber.org/goleak"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/hdfstest"
	"github.com/drover-run/drover/integration/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// nameNode returns the address of a real NameNode, or skips the test.
func nameNode(t testing.TB) string {
	t.Helper()
	b, err := testbed.FromEnv()
	if err == nil && b.HDFS != nil {
		return b.HDFS.NameNode
	}
	address := os.Getenv("DROVER_TEST_NAMENODE")
	if address == "" {
		t.Skipf("not proved here: that the client works with Apache HDFS; %v, and DROVER_TEST_NAMENODE (host:port of one that this test may write to as root) is not set", err)
	}
	return address
}

// newClient returns a client of the real NameNode and an empty directory in it.
func newClient(t testing.TB, options client.Options) (*client.Client, string) {
	t.Helper()
	options.NameNodes = []string{nameNode(t)}
	if options.User == "" {
		options.User = "root"
	}
	c, err := client.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	dir := path.Join("/drover-test", strings.NewReplacer("/", "-", "#", "-").Replace(t.Name()))
	must(t, c.Delete(t.Context(), dir))
	must(t, c.Mkdir(t.Context(), dir))
	return c, dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantClass(t testing.TB, class, err error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error %v, want one of class %q", err, class)
	}
}

// randomBytes returns n bytes generated from a seed.
func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	r.Read(b)
	return b
}

func wantFile(t testing.TB, c *client.Client, name string, want []byte) {
	t.Helper()
	got, err := hdfs.ReadFile(t.Context(), c, name, 1<<30)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: read %d bytes that differ from the %d written", name, len(got), len(want))
	}
}

func TestConformance(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	hdfstest.Run(t, c, hdfstest.Options{Dir: dir, Replication: 2})
}

// An independent library reads what this client wrote.
func TestColinmarcReadsOurFiles(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	other := newColinmarc(t)
	for i, n := range []int{0, 1, 64*1024 - 511, mib, 3*mib + 12345} {
		name, want := path.Join(dir, "file"), randomBytes(n, uint64(i))
		must(t, hdfs.WriteFile(t.Context(), c, name, want, hdfs.CreateOptions{Overwrite: true, Replication: 3, BlockSizeBytes: mib}))
		got, err := other.ReadFile(name)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes: the other client reads something else", n)
		}
	}
}

func newColinmarc(t *testing.T) *colinmarc.Client {
	t.Helper()
	other, err := colinmarc.NewClient(colinmarc.ClientOptions{Addresses: []string{nameNode(t)}, User: "root"})
	must(t, err)
	t.Cleanup(func() { other.Close() })
	return other
}

func TestPermissionsAreCheckedPerUser(t *testing.T) {
	root, dir := newClient(t, client.Options{})
	users := client.NewUserClients(client.Options{NameNodes: []string{nameNode(t)}})
	defer users.Close()
	bob, err := users.ForUser("bob")
	must(t, err)
	if again, err := users.ForUser("bob"); err != nil || again != bob {
		t.Errorf("a second client for one user: %v", err)
	}
	secret := path.Join(dir, "secret")
	must(t, hdfs.WriteFile(t.Context(), root, secret, []byte("x"), hdfs.CreateOptions{}))
	other := newColinmarc(t)
	must(t, other.Chmod(secret, 0o600))

	_, err = bob.Stat(t.Context(), secret)
	must(t, err)
	_, err = bob.Open(t.Context(), secret, 0, -1)
	wantClass(t, hdfs.ErrPermission, err)
	_, err = bob.Locations(t.Context(), secret, 0, -1)
	wantClass(t, hdfs.ErrPermission, err)
	_, err = bob.Create(t.Context(), path.Join(dir, "mine"), hdfs.CreateOptions{})
	wantClass(t, hdfs.ErrPermission, err)
	wantClass(t, hdfs.ErrPermission, bob.Mkdir(t.Context(), path.Join(dir, "mine")))
	wantClass(t, hdfs.ErrPermission, bob.Rename(t.Context(), secret, path.Join(dir, "taken")))
	wantClass(t, hdfs.ErrPermission, bob.Delete(t.Context(), secret))

	must(t, other.Chmod(dir, 0o777))
	must(t, hdfs.WriteFile(t.Context(), bob, path.Join(dir, "mine"), nil, hdfs.CreateOptions{}))
	info, err := root.Stat(t.Context(), path.Join(dir, "mine"))
	must(t, err)
	if info.Owner != "bob" {
		t.Errorf("owner %q", info.Owner)
	}
}

func TestFileBeingWritten(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	name, want := path.Join(dir, "file"), randomBytes(3*mib, 1)
	w, err := c.Create(t.Context(), name, hdfs.CreateOptions{BlockSizeBytes: mib})
	must(t, err)
	_, err = w.Write(want[:2*mib+mib/2])
	must(t, err)
	layout, err := c.Locations(t.Context(), name, 0, -1)
	must(t, err)
	if !layout.UnderConstruction {
		t.Errorf("a file that is being written is not reported as such: %+v", layout)
	}
	for _, b := range layout.Blocks {
		if b.OffsetBytes+b.LengthBytes > 2*mib {
			t.Errorf("an unfinished block is listed: %+v", b)
		}
	}
	r, err := c.Open(t.Context(), name, 0, -1)
	must(t, err)
	got, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if !bytes.Equal(got, want[:len(got)]) {
		t.Error("the finished part is read wrongly")
	}
	_, err = w.Write(want[2*mib+mib/2:])
	must(t, err)
	must(t, w.Commit())
	wantFile(t, c, name, want)
}

func TestFileRemovedWhileWritten(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	name := path.Join(dir, "file")
	w, err := c.Create(t.Context(), name, hdfs.CreateOptions{})
	must(t, err)
	_, err = w.Write(randomBytes(100_000, 1))
	must(t, err)
	must(t, c.Delete(t.Context(), name))
	must(t, hdfs.WriteFile(t.Context(), c, name, []byte("another"), hdfs.CreateOptions{}))
	if err := w.Commit(); err == nil {
		t.Error("committed a file that is gone")
	}
	must(t, w.Abort()) // must not remove the other writer's file
	wantFile(t, c, name, []byte("another"))
}

func TestCreateOptionsAreApplied(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	name := path.Join(dir, "file")
	must(t, hdfs.WriteFile(t.Context(), c, name, randomBytes(5*mib, 1), hdfs.CreateOptions{Replication: 3, BlockSizeBytes: 2 * mib, Sync: true}))
	await(t, "three blocks of three replicas", func() bool { // a file is complete with one replica of each block; DataNodes report the others later
		layout, err := c.Locations(t.Context(), name, 0, -1)
		must(t, err)
		return len(layout.Blocks) == 3 && !slices.ContainsFunc(layout.Blocks, func(b hdfs.Block) bool { return len(b.Replicas) != 3 })
	})
	info, err := c.Stat(t.Context(), name)
	must(t, err)
	if info.Replication != 3 || info.BlockSizeBytes != 2*mib {
		t.Errorf("%+v", info)
	}
}

func TestLongListing(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	const n = 2500 // three batches of the NameNode's 1,000
	for i := range n {
		must(t, c.Mkdir(t.Context(), path.Join(dir, string(rune('a'+i%26))+strings.Repeat("x", i/26))))
	}
	entries, err := c.List(t.Context(), dir)
	must(t, err)
	seen := map[string]bool{}
	for i, e := range entries {
		if i > 0 && entries[i-1].Path >= e.Path || seen[e.Path] {
			t.Fatalf("entry %d out of order: %s", i, e.Path)
		}
		seen[e.Path] = true
	}
	if len(entries) != n {
		t.Errorf("%d entries, want %d", len(entries), n)
	}
}

func TestUnreachableNameNode(t *testing.T) {
	c, err := client.New(client.Options{NameNodes: []string{"127.0.0.1:1"}, User: "root", WaitLimit: -1})
	must(t, err)
	defer c.Close()
	_, err = c.Stat(t.Context(), "/x")
	wantClass(t, hdfs.ErrUnavailable, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Stat(ctx, "/x")
	wantClass(t, context.Canceled, err)
}
