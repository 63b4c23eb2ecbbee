package build

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/integration/internal/cache"
)

// A library that cannot be fetched is done without, and said; one with another content is refused.
func TestNativeLibraryThatIsNotThere(t *testing.T) {
	for name, c := range map[string]struct{ mvn, said, err string }{
		"no network":    {"echo no network >&2; exit 1", "without domain sockets of the DataNodes: building native: native library of Hadoop: not fetched: mvn ", ""},
		"other content": {`for a; do case $a in -DoutputDirectory=*) echo other >"${a#*=}/` + nativeJar + `";; esac; done`, "", nativeJar + " has the SHA-256 checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			programs := t.TempDir()
			for program, text := range map[string]string{"mvn": c.mvn, "java": "", "javac": ""} {
				if err := os.WriteFile(filepath.Join(programs, program), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
			var said bytes.Buffer
			entry, err := NativeLibrary(t.Context(), cache.Dir(t.TempDir()), NewProgress(&said))
			if entry != nil || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || !strings.Contains(said.String(), c.said) {
				t.Errorf("%v, %v\n%s", entry, err, said.String())
			}
		})
	}
}
