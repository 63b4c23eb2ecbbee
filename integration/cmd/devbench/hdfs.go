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
	client := fmt.Sprintf("#!/bin/sh\nexec java $JAVA_OPTIONS -cp .:%q org.apache.hadoop.fs.FsShell -fs hdfs://%s \"$@\"\n", bed.HDFS.ClassPath, bed.HDFS.NameNode)
	if err := errors.Join(os.WriteFile(b.path("core-site.xml"), []byte("<configuration/>\n"), 0o600), os.WriteFile(b.path("hdfs"), []byte(client), 0o700)); err != nil {
		return nil, err
	}

	const large, small = "large.txt", "small.txt"
	for _, file := range []string{large, small} {
		if _, err := b.shell(fmt.Sprintf("./hdfs -D dfs.replication=1 -D dfs.blocksize=1073741824 -put -f %[1]s %[2]s%[1]s && ./hdfs -cat %[2]s%[1]s | cmp - %[1]s", file, hdfsFolder)); err != nil {
			return nil, err
		}
	}
	whole, least, err := b.pairsOf(large, small, func(file string) (resourceUse, error) {
		return b.readByTask(bed.HDFS, file)
	}, func(file string) (resourceUse, error) {
		return b.shell("./hdfs -cat " + hdfsFolder + file + " >/dev/null")
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
	more, err := b.measureShortCircuit(bed.HDFS, what, large, small)
	if err != nil {
		return nil, err
	}
	return append([]figure{
		{what + "wall", whole.median(wallOf), "s", "grep that finds nothing"},
		{what + "wall over hdfs dfs -cat", whole.ratio(wallOf), "times", whole.ratioSpread(wallOf) + note},
		{what + "CPU over hdfs dfs -cat", whole.ratio(cpuOf), "times", whole.ratioSpread(cpuOf) + note + "; of the client, without the DataNode; with start and end of drover dev"},
		{what + fmt.Sprintf("what all but %.0f MB take, wall over hdfs dfs -cat", first), rest.ratio(wallOf), "times", rest.ratioSpread(wallOf) + "; no native library"},
		{what + fmt.Sprintf("what all but %.0f MB take, CPU over hdfs dfs -cat", first), rest.ratio(cpuOf), "times", rest.ratioSpread(cpuOf) + "; no native library"},
	}, more...), nil
}

// hdfsFolder precedes the names of the files in HDFS.
const hdfsFolder = "/devbench-"

// readByTask reads a file by one task of a new `drover dev` with additional flags.
func (b *bench) readByTask(h *testbed.HDFS, file string, flags ...string) (u resourceUse, err error) {
	out := b.path("nothing")
	if err := os.RemoveAll(out); err != nil {
		return u, err
	}
	u.cpu, err = b.withDev(func(run func(string) error) error {
		job := b.writeJobFile("hdfs", fmt.Sprintf(`input { path = "hdfs://%s%s%s" }
  output { path = "file://%s" }
  stage "read" {
    kind = "map"
    builtin = ["grep", "no line has this \\t\\t\\t"]
  }`, h.NameNode, hdfsFolder, file, out))
		start := time.Now()
		err := run(job)
		u.wall = time.Since(start).Seconds()
		return err
	}, append([]string{"-namenode", h.NameNode}, flags...)...)
	return u, err
}
