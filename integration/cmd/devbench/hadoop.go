package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/cache"
)

// hadoopCommand counts words in one JVM: as many maps and reduces at a time as Drover has. What it
// logs is shown only if it fails.
const hadoopCommand = `rm -rf hadoop.out && java -cp %q WordCount -D fs.defaultFS=file:/// -D mapreduce.framework.name=local -D hadoop.tmp.dir="$PWD/hadoop.tmp" \
  -D mapreduce.job.reduces=2 -D mapreduce.local.map.tasks.maximum=2 -D mapreduce.local.reduce.tasks.maximum=2 %s hadoop.out >hadoop.log 2>&1 || { cat hadoop.log >&2; exit 1; }`

// fetchLimit limits the time to fetch and compile what the word count of Hadoop needs.
const fetchLimit = 5 * time.Minute

// hadoop counts the words of a file by Hadoop's MapReduce in one process, its LocalJobRunner. Where
// there is no Java, or the jars are neither in the cache of the test bed nor to be had, it is absent.
func (b *bench) hadoop(input string) counter {
	c := counter{name: "Hadoop", result: "hadoop.out/part-*"}
	classPath, err := b.hadoopClassPath()
	if err != nil {
		c.note = "absent: " + shorten(err.Error())
		return c
	}
	c.note = hadoopVersion(classPath) + " in one JVM (LocalJobRunner) with its start, two maps and two reduces at a time"
	c.use = func() (resourceUse, error) { return b.shell(fmt.Sprintf(hadoopCommand, classPath, input)) }
	return c
}

// hadoopClassPath returns the class path of the word count, which it makes if it is not in the cache.
func (b *bench) hadoopClassPath() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", errors.New("no Java here")
	}
	ctx, cancel := context.WithTimeout(b.ctx, fetchLimit)
	defer cancel()
	dir, err := cache.Open(cache.RepoRoot())
	if err != nil {
		return "", err
	}
	p := build.NewProgress(os.Stderr)
	hdfs, err := build.HDFS(ctx, dir, p)
	if err != nil {
		return "", err
	}
	b.entries = append(b.entries, hdfs)
	words, err := build.MapReduce(ctx, dir, p, hdfs)
	if err != nil {
		return "", err
	}
	b.entries = append(b.entries, words)
	return build.ClassPath(words.Path) + ":" + build.ClassPath(hdfs.Path), nil
}

var hadoopJar = regexp.MustCompile(`/hadoop-common-([0-9.]+)\.jar`)

// hadoopVersion returns the version of the jars in a class path.
func hadoopVersion(classPath string) string {
	if m := hadoopJar.FindStringSubmatch(classPath); m != nil {
		return "Hadoop " + m[1]
	}
	return "Hadoop of unknown version"
}

// shorten returns a message in one line that fits in a table.
func shorten(message string) string {
	const most = 120
	line := strings.Join(strings.Fields(message), " ")
	if runes := []rune(line); len(runes) > most {
		line = string(runes[:most]) + " ..."
	}
	return line
}
