package client_test

import (
	"os"
	"path"
	"strings"
	"testing"

	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/hdfstest"
)

// nameNode gives the address of a real NameNode, or skips.
func nameNode(t testing.TB) string {
	t.Helper()
	address := os.Getenv("DROVER_TEST_NAMENODE")
	if address == "" {
		t.Skip("DROVER_TEST_NAMENODE (host:port of a NameNode that this test may write to as root) is not set")
	}
	return address
}

// newClient gives a client of the real NameNode and an empty directory in it.
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
	if err := c.Delete(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := c.Mkdir(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return c, dir
}

func TestConformance(t *testing.T) {
	c, dir := newClient(t, client.Options{})
	hdfstest.Run(t, c, hdfstest.Options{Dir: dir, Replication: 2})
}
