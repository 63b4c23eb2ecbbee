package build

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/java"
)

// copyJars is the Maven goal that puts the jars of a pom into a folder; pinned like everything else.
const copyJars = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// HDFS returns the entry with the jars of Apache HDFS (lib), our compiled host program (classes) and its settings
// (conf). Making it takes about 10 s and 45 MB of download.
func HDFS(ctx context.Context, c cache.Dir, p *Progress) (*cache.Entry, error) {
	parts, err := cache.SourcesOf(java.Sources, nil)
	if err != nil {
		return nil, err
	}
	key := cache.KeyOf(append(parts, copyJars)...)
	return c.Get("hdfs", key, func(dir string) error {
		if err := Need(ForHDFS); err != nil {
			return err
		}
		return p.Step("jars of Apache HDFS", func() error { return makeHDFS(ctx, dir) })
	})
}

func makeHDFS(ctx context.Context, dir string) error {
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, java.Sources); err != nil {
		return err
	}
	mvn := exec.CommandContext(ctx, "mvn", "-B", "-q", "-Dstyle.color=never", copyJars,
		"-DoutputDirectory="+filepath.Join(dir, "lib"), "-DincludeScope=runtime")
	mvn.Dir = src
	if _, err := run(mvn); err != nil {
		return err
	}
	// The Maven jars carry no web pages; the daemons ask only that the folders exist.
	for _, web := range []string{"hdfs", "datanode", "static", "secondary"} {
		if err := os.MkdirAll(filepath.Join(dir, "conf", "webapps", web), 0o755); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(src, "log4j.properties"), filepath.Join(dir, "conf", "log4j.properties")); err != nil {
		return err
	}
	sources, err := fs.Glob(java.Sources, "*.java")
	if err != nil {
		return err
	}
	javac := exec.CommandContext(ctx, "javac", append([]string{"-nowarn", "-proc:none",
		"-cp", filepath.Join(dir, "lib", "*"), "-d", filepath.Join(dir, "classes")}, sources...)...)
	javac.Dir = src
	_, err = run(javac)
	return err
}
