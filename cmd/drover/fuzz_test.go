package main

import (
	"archive/tar"
	"bytes"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzConfigFile reads the settings of a daemon.
func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("data = \"/var/lib/drover\"\noperator = [\"user/alice\"]\nlease = \"15s\"\nbootstrap = true\n"))
	f.Add([]byte("data = x.y[\"${1/0}\"]"))
	daemon := coordinatorCommand()
	fuzztest.Run(f, func(_ *testing.T, b []byte) { _, _ = parseConfig(daemon, "c.hcl", b) }) // most are no settings
}

// FuzzTenantFile reads tenants.
func FuzzTenantFile(f *testing.F) {
	f.Add([]byte("tenant \"a\" {\n  weight = 2\n  uid = 2001\n  submit = [\"alice\"]\n  cap { cpu = \"4\" }\n}\n"))
	f.Add([]byte("tenant \"a\" { weight = 1e999 }"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		list, err := parseTenants("t.hcl", b)
		for _, x := range list {
			if err == nil && x.GetUid() > 1<<31 {
				t.Errorf("uid %d", x.GetUid())
			}
		}
	})
}

// FuzzBundle reads an archive of settings and certificates: only the four files of a bundle
// come out of it.
func FuzzBundle(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"node.hcl", "ca.pem", "node.pem", "node.key"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 1, Typeflag: tar.TypeReg}); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:1500])
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		role, files, err := parseBundle("b.tar", bytes.NewReader(b))
		if err == nil && (len(files) != 4 || bundlePorts[role] == "") {
			t.Errorf("role %q with %d files", role, len(files))
		}
	})
}
