package build

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/drover-run/drover/integration/internal/cache"
)

// Hadoop's native library, which Apache's own jars lack, in a jar of Maven's central repository. A
// DataNode needs it for its domain socket. Its version is older than that of HDFS: its interface to
// Java has the same functions.
const (
	copyArtifact    = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
	nativeArtifact  = "io.trino.hadoop:hadoop-apache:3.3.5-3"
	nativeJar       = "hadoop-apache-3.3.5-3.jar"
	nativeJarSHA256 = "2d6fb96cb86f0411f1d520012b0fe2fc0215dcf920108e316f3e31b435dcc88d"
	nativeLibrary   = "libhadoop.so"
)

// errNotFetched says that Maven could not fetch the jar.
var errNotFetched = errors.New("not fetched")

// NativeLibrary returns the entry with Hadoop's native library, a folder for -Djava.library.path;
// nil, with a line of progress, if there is none for this processor, or its jar cannot be fetched: only
// domain sockets need it. Making it takes about 5 s and 32 MB of download.
func NativeLibrary(ctx context.Context, c cache.Dir, p *Progress) (*cache.Entry, error) {
	system := map[string]string{"amd64": "Linux-amd64", "arm64": "Linux-aarch64", "ppc64le": "Linux-ppc64le"}[runtime.GOARCH]
	if system == "" {
		p.printf("no native library of Hadoop for %s: its DataNodes have no domain sockets", runtime.GOARCH)
		return nil, nil
	}
	key := cache.KeyOf("1", copyArtifact, nativeArtifact, nativeJarSHA256, system)
	entry, err := c.Get("native", key, func(dir string) error {
		if err := Require(ForHDFS); err != nil {
			return err
		}
		return p.step("native library of Hadoop", func() error { return makeNative(ctx, dir, system) })
	})
	if errors.Is(err, errNotFetched) && ctx.Err() == nil {
		p.printf("without domain sockets of the DataNodes: %v", err)
		return nil, nil
	}
	return entry, err
}

func makeNative(ctx context.Context, dir, system string) error {
	mvn := exec.CommandContext(ctx, "mvn", "-B", "-q", "-Dstyle.color=never", copyArtifact, "-Dartifact="+nativeArtifact, "-DoutputDirectory="+dir)
	mvn.Dir = dir // which has no pom
	if _, err := runCommand(mvn); err != nil {
		return fmt.Errorf("%w: %w", errNotFetched, err)
	}
	jar := filepath.Join(dir, nativeJar)
	if err := checkSHA256(jar, nativeJarSHA256); err != nil {
		return err
	}
	return errors.Join(extract(jar, "nativelib/"+system+"/"+nativeLibrary, filepath.Join(dir, nativeLibrary)), os.Remove(jar))
}

// checkSHA256 returns an error unless a file has the checksum.
func checkSHA256(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s has the SHA-256 checksum %s, want %s", filepath.Base(path), got, want)
	}
	return nil
}

// extract copies one file of an archive.
func extract(archive, name, to string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	b, err := fs.ReadFile(z, name)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}
