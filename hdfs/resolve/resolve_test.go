package resolve_test

import (
	"errors"
	"net"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/hdfs/resolve"
)

func TestURIsResolveToFileSystems(t *testing.T) {
	local := fake.New(fake.Options{})
	r := resolve.New(resolve.Options{
		HDFS:     client.Options{NameNodes: []string{"nn1:8020", "nn2:8020"}},
		Services: map[string][]string{"archive": {"nn3:8020"}},
		Allowed:  []string{"nn4:8020"},
		Local:    local,
	})
	defer r.Close()
	fs := func(raw, user string) hdfs.FS {
		t.Helper()
		u, err := hdfs.ParseURI(raw)
		if err != nil {
			t.Fatal(err)
		}
		f, err := r.FS(u, user)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	alice := fs("hdfs:///a", "alice")
	for _, same := range []string{"hdfs:///b", "hdfs://nn1:8020/a", "hdfs://nn2:8020/a"} {
		if fs(same, "alice") != alice {
			t.Errorf("%s is another file system than hdfs:///", same)
		}
	}
	for _, other := range []hdfs.FS{fs("hdfs:///a", "bob"), fs("hdfs://archive/a", "alice"), fs("hdfs://nn4:8020/a", "alice")} {
		if other == alice {
			t.Error("one client for different users or services")
		}
	}
	if fs("file:///a", "alice") != hdfs.FS(local) {
		t.Error("file:/// is not the local file system")
	}
}

func TestDisallowedURIsAreRefused(t *testing.T) {
	strict := resolve.New(resolve.Options{})
	loose := resolve.New(resolve.Options{Allowed: []string{"*"}})
	closed := resolve.New(resolve.Options{Allowed: []string{"*"}})
	closed.Close()
	for _, c := range []struct {
		r    *resolve.Resolver
		raw  string
		user string
		want error
	}{
		{strict, "hdfs:///a", "alice", hdfs.ErrInvalid},
		{strict, "hdfs://evil:8020/a", "alice", hdfs.ErrPermission},
		{strict, "hdfs://unknown/a", "alice", hdfs.ErrInvalid},
		{strict, "file:///a", "alice", hdfs.ErrPermission},
		{loose, "hdfs://any:8020/a", "alice", nil},
		{loose, "hdfs://any:8020/a", "", hdfs.ErrInvalid},
		{closed, "hdfs://any:8020/a", "alice", net.ErrClosed},
	} {
		u, err := hdfs.ParseURI(c.raw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.r.FS(u, c.user); !errors.Is(err, c.want) {
			t.Errorf("%s as %q: %v, want %v", c.raw, c.user, err, c.want)
		}
	}
}
