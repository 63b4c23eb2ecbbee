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

// countWords is the independent count with coreutils.
const countWords = `cat "$@" | LC_ALL=C tr -s ' \t\n\v\f\r' '\n' | LC_ALL=C grep -av '^$' | LC_ALL=C sort | LC_ALL=C uniq -c | awk '{print $2 "\t" $1}' | LC_ALL=C sort`

// compareWordCount compares the job's result with the independent count.
func (s *demo) compareWordCount(ctx context.Context, job string) error {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", countWords, "count"}, s.testbed.File.Books...)...)
	want, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("independent count: %w", err)
	}
	got, err := s.readResult(ctx, "/out/"+job)
	if err != nil {
		return err
	}
	differ := countDifferences(got, want)
	s.logf("result against an independent count (tr, sort, uniq -c): %d words, %d differences", bytes.Count(want, []byte("\n")), differ)
	if differ > 0 {
		return fmt.Errorf("the result of job %s differs from the independent count in %d lines", job, differ)
	}
	return nil
}

// compareSearch compares the search job's result with grep.
func (s *demo) compareSearch(ctx context.Context, job string) error {
	want, err := exec.CommandContext(ctx, "bash", append([]string{"-c", `cat "$@" | LC_ALL=C grep -a ` + searchWord + ` | wc -l`, "search"}, s.testbed.File.Books[:searchedBooks]...)...).Output()
	if err != nil {
		return fmt.Errorf("independent search: %w", err)
	}
	lines, err := strconv.Atoi(strings.TrimSpace(string(want)))
	if err != nil {
		return fmt.Errorf("independent search: %w", err)
	}
	got, err := s.readResult(ctx, "/out/"+job)
	if err != nil {
		return err
	}
	found := bytes.Count(got, []byte("\n"))
	s.logf("lines with %q: %d, and %d by grep", searchWord, found, lines)
	if found != lines {
		return fmt.Errorf("job %s found %d lines with %q, grep %d", job, found, searchWord, lines)
	}
	return nil
}

// readResult returns all parts of an output, sorted.
func (s *demo) readResult(ctx context.Context, dir string) ([]byte, error) {
	fs, err := client.New(client.Options{NameNodes: []string{s.testbed.HDFS.NameNode}, User: "root"})
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
	go func() { fed <- errors.Join(copyParts(ctx, fs, files, in), in.Close()) }()
	out, err := cmd.Output()
	return out, errors.Join(err, <-fed)
}

func copyParts(ctx context.Context, fs hdfs.Source, files []hdfs.Info, to io.Writer) error {
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

// countDifferences counts the lines that only one of two sorted texts has.
func countDifferences(a, b []byte) int {
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
