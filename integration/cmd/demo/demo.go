package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
)

// demo is one run of a scenario.
type demo struct {
	stopwatch
	testbed *testbed.Bed
	cluster *cluster.Cluster
	dir     string
	image   string
}

// The text has blocks of 1 MiB. blockPlaces are the machines whose DataNodes store them in turn:
// half of the blocks on the first machine, a third on the second.
const blockBytes = 1 << 20

var blockPlaces = []int{1, 2, 1, 3, 1, 2}

// jobFile is a user's job file. It uses the built-in programs because the machines are emulated.
const jobFile = `job %q {
  tenant = "analytics"
  input  { path = "hdfs:///books/%s" }
  output { path = "hdfs:///out/%s" }
  image  = "oci-archive:%s"
  stage "map" {
    kind      = "map"
    builtin   = [%s]
    disk      = "64MiB"
    containers_used_again = true
    resources { cpu = "450m"  memory = "64MiB"  io = "8MiB/s" }
  }
  stage "reduce" {
    kind      = "reduce"
    tasks     = %d
    builtin   = [%q]
    combiner  = %t
    slow_start = 0.8
    disk      = "64MiB"
    containers_used_again = true
    resources { cpu = "450m"  memory = "64MiB"  io = "8MiB/s" }
  }
}
`

// job has the values of jobFile.
type job struct {
	name    string
	books   string // pattern
	mapper  string // arguments of builtin
	reducer string
	reduces int
	combine bool
}

// The search job looks for searchWord in the first books. Its maps do almost nothing. They show
// where a scheduler places them as well as longer maps would, but sooner.
const (
	searchWord    = "sheep"
	searchedBooks = 2
)

var (
	wordCountJob = job{"wordcount", "*", `"wordcount"`, "sum", 4, true}
	searchJob    = job{"search-fifo", "book-0[12].txt", `"grep", "` + searchWord + `"`, "identity", 1, false}
)

func (s *demo) runWordCount(ctx context.Context) error {
	blocks, err := s.loadBooks(ctx)
	if err != nil {
		return err
	}
	all := sumBlocks(blocks)
	s.logf("HDFS holds %d blocks of 1 MiB, one copy each, on the machines as %v", sumInts(all), all)
	aware, err := s.runJob(ctx, wordCountJob)
	if err != nil {
		return err
	}
	if err := s.compareWordCount(ctx, wordCountJob.name); err != nil {
		return err
	}
	if err := s.printLimits(ctx, wordCountJob.name); err != nil {
		return err
	}
	s.logf("a search through the first %d books under `fifo`, which ignores locality", searchedBooks)
	if err := runShown(ctx, s.cluster, "scheduler", "set", "fifo"); err != nil {
		return err
	}
	blind, err := s.runJob(ctx, searchJob)
	if err != nil {
		return err
	}
	if err := s.compareSearch(ctx, searchJob.name); err != nil {
		return err
	}
	return s.printLocality(outcome{"3dsf", all, aware}, outcome{"fifo (ignores locality)", sumBlocks(blocks[:searchedBooks]), blind})
}

// runJob runs a job and returns where its maps ran.
func (s *demo) runJob(ctx context.Context, j job) (placements, error) {
	file := filepath.Join(s.dir, j.name+".hcl")
	text := fmt.Appendf(nil, jobFile, j.name, j.books, j.name, s.image, j.mapper, j.reduces, j.reducer, j.combine)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return placements{}, err
	}
	if err := runShown(ctx, s.cluster, "job", "run", file); err != nil {
		return placements{}, err
	}
	return s.mapPlacements(ctx, j.name)
}

// loadBooks writes the text to HDFS and returns the number of blocks of each book on each machine.
func (s *demo) loadBooks(ctx context.Context) ([][]int, error) {
	count := make([][]int, len(s.testbed.File.Books))
	for i, f := range s.testbed.File.Books {
		s.logf("loading %s", filepath.Base(f))
		if err := s.testbed.HDFS.Load(ctx, f, "/books/"+filepath.Base(f), blockBytes, rotatePlaces(blockPlaces, i)...); err != nil {
			return nil, err
		}
		st, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		count[i] = make([]int, len(s.testbed.Nodes))
		for b := range (st.Size() + blockBytes - 1) / blockBytes {
			count[i][rotatePlaces(blockPlaces, i)[int(b)%len(blockPlaces)]-1]++
		}
	}
	return count, nil
}

// rotatePlaces rotates p, so that the uneven distribution of blocks differs from book to book.
func rotatePlaces(p []int, by int) []int {
	by %= len(p)
	return append(append([]int(nil), p[by:]...), p[:by]...)
}

// sumBlocks sums the blocks of books per machine.
func sumBlocks(books [][]int) []int {
	all := make([]int, len(books[0]))
	for _, b := range books {
		for k, n := range b {
			all[k] += n
		}
	}
	return all
}

func sumInts(n []int) int {
	t := 0
	for _, v := range n {
		t += v
	}
	return t
}
