package build

import (
	"context"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/java"
)

// MapReduce returns the entry with the jars of Hadoop's MapReduce beyond those of HDFS (lib), and a
// word count (classes). Making it takes about 10 s and 6 MB of download.
func MapReduce(ctx context.Context, c cache.Dir, p *Progress, hdfs *cache.Entry) (*cache.Entry, error) {
	parts, err := cache.SourcesOf(java.MapReduce, nil)
	if err != nil {
		return nil, err
	}
	key := cache.KeyOf(append(parts, copyJars, filepath.Base(hdfs.Path))...)
	return c.Get("mapreduce", key, func(dir string) error {
		if err := Require(ForHDFS); err != nil {
			return err
		}
		return p.step("jars of Hadoop's MapReduce", func() error { return makeMapReduce(ctx, dir, hdfs.Path) })
	})
}

func makeMapReduce(ctx context.Context, dir, hdfs string) error {
	if err := os.CopyFS(filepath.Join(dir, "src"), java.MapReduce); err != nil {
		return err
	}
	src := filepath.Join(dir, "src", "mapreduce")
	if err := fetchJars(ctx, src, dir); err != nil {
		return err
	}
	return compileJava(ctx, src, dir, filepath.Join(dir, "lib", "*")+":"+filepath.Join(hdfs, "lib", "*"))
}
