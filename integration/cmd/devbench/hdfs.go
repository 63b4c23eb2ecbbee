package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// measureHDFS reads a file of one block from HDFS by one task that keeps no line of it, and with
// HDFS's own client; the DataNode's part is in neither figure. Outside a test bed it measures nothing.
func (b *bench) measureHDFS() ([]figure, error) {
	bed, err := testbed.FromEnv()
	if errors.Is(err, testbed.ErrNoTestbed) || err == nil && bed.HDFS == nil {
		fmt.Fprintln(os.Stderr, "devbench: no HDFS here: skipping its part (bin/testbed hdfs -- bin/devbench -parts hdfs)")
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	const file = "/devbench-large.txt"
	client := fmt.Sprintf("#!/bin/sh\nexec java -cp .:%q org.apache.hadoop.fs.FsShell -fs hdfs://%s \"$@\"\n", bed.HDFS.ClassPath, bed.HDFS.NameNode)
	if err := errors.Join(os.WriteFile(b.path("core-site.xml"), []byte("<configuration/>\n"), 0o600), os.WriteFile(b.path("hdfs"), []byte(client), 0o700)); err != nil {
		return nil, err
	}

	if _, err := b.shell("./hdfs -D dfs.replication=1 -D dfs.blocksize=1073741824 -put -f large.txt " + file + " && ./hdfs -cat " + file + " | cmp - large.txt"); err != nil {
		return nil, err
	}
	out := b.path("nothing")
	p, err := b.pairs(func() (u resourceUse, err error) {
		if err := os.RemoveAll(out); err != nil {
			return u, err
		}
		u.cpu, err = b.withDev(func(run func(string) error) error {
			job := b.writeJobFile("hdfs", fmt.Sprintf(`input { path = "hdfs://%s%s" }
  output { path = "file://%s" }
  stage "read" {
    kind = "map"
    builtin = ["grep", "no line has this \\t\\t\\t"]
  }`, bed.HDFS.NameNode, file, out))
			start := time.Now()
			err := run(job)
			u.wall = time.Since(start).Seconds()
			return err
		}, "-namenode", bed.HDFS.NameNode)
		return u, err
	}, func() (resourceUse, error) {
		return b.shell("./hdfs -cat " + file + " >/dev/null")
	})
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path("large.txt"))
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%.0f MB read from HDFS by one task, ", size)
	return []figure{
		{what + "wall", p.median(wallOf), "s", 0, "grep that finds nothing"},
		{what + "wall over hdfs dfs -cat", p.ratio(wallOf), "times", 0, p.ratioSpread(wallOf)},
		{what + "CPU over hdfs dfs -cat", p.ratio(cpuOf), "times", targetHDFS, p.ratioSpread(cpuOf) + "; of the client, without the DataNode; with start and end of drover dev"},
	}, nil
}
