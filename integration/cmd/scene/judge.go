package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
)

// countWords is the independent count: coreutils over the same text.
const countWords = `cat "$@" | LC_ALL=C tr -s ' \t\n\v\f\r' '\n' | LC_ALL=C grep -av '^$' | LC_ALL=C sort | LC_ALL=C uniq -c | awk '{print $2 "\t" $1}' | LC_ALL=C sort`

// compare holds the job's result against the independent count.
func (s *scene) compare(ctx context.Context, job string) error {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", countWords, "count"}, s.bed.File.Books...)...)
	want, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("independent count: %w", err)
	}
	got, err := s.result(ctx, "/out/"+job)
	if err != nil {
		return err
	}
	differ := differences(got, want)
	s.say("result against an independent count (tr, sort, uniq -c): %d words, %d differences", bytes.Count(want, []byte("\n")), differ)
	if differ > 0 {
		return fmt.Errorf("the result of job %s differs from the independent count in %d lines", job, differ)
	}
	return nil
}

// compareSearch holds the second job's result against grep.
func (s *scene) compareSearch(ctx context.Context, job string) error {
	want, err := exec.CommandContext(ctx, "bash", append([]string{"-c", `cat "$@" | LC_ALL=C grep -a ` + word + ` | wc -l`, "search"}, s.bed.File.Books[:searched]...)...).Output()
	if err != nil {
		return fmt.Errorf("independent search: %w", err)
	}
	lines, err := strconv.Atoi(strings.TrimSpace(string(want)))
	if err != nil {
		return fmt.Errorf("independent search: %w", err)
	}
	got, err := s.result(ctx, "/out/"+job)
	if err != nil {
		return err
	}
	found := bytes.Count(got, []byte("\n"))
	s.say("lines with %q: %d, and %d by grep", word, found, lines)
	if found != lines {
		return fmt.Errorf("job %s found %d lines with %q, grep %d", job, found, word, lines)
	}
	return nil
}

// result reads all parts of an output, sorted.
func (s *scene) result(ctx context.Context, dir string) ([]byte, error) {
	fs, err := client.New(client.Options{NameNodes: []string{s.bed.HDFS.NameNode}, User: "root"})
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	if _, err := fs.Stat(ctx, dir+"/_SUCCESS"); err != nil {
		return nil, fmt.Errorf("%s has no _SUCCESS: %w", dir, err)
	}
	files, err := fs.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sort")
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	fed := make(chan error, 1)
	go func() { fed <- errors.Join(feed(ctx, fs, files, in), in.Close()) }()
	out, err := cmd.Output()
	return out, errors.Join(err, <-fed)
}

func feed(ctx context.Context, fs hdfs.Source, files []hdfs.Info, to io.Writer) error {
	for _, f := range files {
		if !strings.Contains(f.Path, "/part-") {
			continue
		}
		b, err := hdfs.ReadFile(ctx, fs, f.Path, 1<<30)
		if err != nil {
			return err
		}
		if _, err := to.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// differences counts the lines of two sorted texts that the other lacks.
func differences(a, b []byte) int {
	x, y := bufio.NewScanner(bytes.NewReader(a)), bufio.NewScanner(bytes.NewReader(b))
	for _, s := range []*bufio.Scanner{x, y} {
		s.Buffer(nil, 64<<20)
	}
	n := 0
	okX, okY := x.Scan(), y.Scan()
	for okX || okY {
		switch {
		case okX && okY && bytes.Equal(x.Bytes(), y.Bytes()):
			okX, okY = x.Scan(), y.Scan()
		case !okY || (okX && bytes.Compare(x.Bytes(), y.Bytes()) < 0):
			n++
			okX = x.Scan()
		default:
			n++
			okY = y.Scan()
		}
	}
	return n
}
