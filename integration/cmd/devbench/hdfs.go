package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// measureHDFS reads files of one block from HDFS, once by a task that discards all lines, and once
// with HDFS's own client. No figure includes the DataNode's part. The client starts a JVM for each
// file, whereas drover dev is already running, so the cost of the bytes is the difference between a
// large file and a small one. Outside a test bed measureHDFS measures nothing.
func (b *bench) measureHDFS() ([]figure, error) {
	bed, err := testbed.FromEnv()
	if errors.Is(err, testbed.ErrNoTestbed) || err == nil && bed.HDFS == nil {
		fmt.Fprintln(os.Stderr, "devbench: no HDFS here: skipping its part (bin/testbed hdfs -- bin/devbench -parts hdfs)")
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	client := fmt.Sprintf("#!/bin/sh\nexec java -cp .:%q org.apache.hadoop.fs.FsShell -fs hdfs://%s \"$@\"\n", bed.HDFS.ClassPath, bed.HDFS.NameNode)
	if err := errors.Join(os.WriteFile(b.path("core-site.xml"), []byte("<configuration/>\n"), 0o600), os.WriteFile(b.path("hdfs"), []byte(client), 0o700)); err != nil {
		return nil, err
	}

	const large, small = "large.txt", "small.txt"
	for _, file := range []string{large, small} {
		if _, err := b.shell(fmt.Sprintf("./hdfs -D dfs.replication=1 -D dfs.blocksize=1073741824 -put -f %[1]s /devbench-%[1]s && ./hdfs -cat /devbench-%[1]s | cmp - %[1]s", file)); err != nil {
			return nil, err
		}
	}
	out := b.path("nothing")
	whole, least, err := b.pairsOf(large, small, func(file string) (u resourceUse, err error) {
		if err := os.RemoveAll(out); err != nil {
			return u, err
		}
		u.cpu, err = b.withDev(func(run func(string) error) error {
			job := b.writeJobFile("hdfs", fmt.Sprintf(`input { path = "hdfs://%s/devbench-%s" }
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
	}, func(file string) (resourceUse, error) {
		return b.shell("./hdfs -cat /devbench-" + file + " >/dev/null")
	})
	if err != nil {
		return nil, err
	}
	size, err := sizeMB(b.path(large))
	if err != nil {
		return nil, err
	}
	first, err := sizeMB(b.path(small))
	if err != nil {
		return nil, err
	}
	rest := whole.less(least)
	const note = "; with the JVM's start, no native library"
	what := fmt.Sprintf("%.0f MB read from HDFS by one task, ", size)
	return []figure{
		{what + "wall", whole.median(wallOf), "s", "grep that finds nothing"},
		{what + "wall over hdfs dfs -cat", whole.ratio(wallOf), "times", whole.ratioSpread(wallOf) + note},
		{what + "CPU over hdfs dfs -cat", whole.ratio(cpuOf), "times", whole.ratioSpread(cpuOf) + note + "; of the client, without the DataNode; with start and end of drover dev"},
		{what + fmt.Sprintf("what all but %.0f MB take, wall over hdfs dfs -cat", first), rest.ratio(wallOf), "times", rest.ratioSpread(wallOf) + "; no native library"},
		{what + fmt.Sprintf("what all but %.0f MB take, CPU over hdfs dfs -cat", first), rest.ratio(cpuOf), "times", rest.ratioSpread(cpuOf) + "; no native library"},
	}, nil
}
