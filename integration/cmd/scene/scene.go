package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/cluster"
)

// scene is one performance.
type scene struct {
	clock
	bed   *bed.Bed
	cl    *cluster.Cluster
	dir   string
	image string
}

// blocks of 1 MiB, and on which machine's DataNode each lies: half of them on
// the first machine, a third on the second.
const blockBytes = 1 << 20

var places = []int{1, 2, 1, 3, 1, 2}

// jobFile is what a user writes, with the built-in programs because machines
// here are emulated.
const jobFile = `job %q {
  tenant = "analytics"
  input  { path = "hdfs:///books/%s" }
  output { path = "hdfs:///out/%s" }
  image  = "oci-archive:%s"
  stage "map" {
    kind      = "map"
    builtin   = [%s]
    disk      = "64MiB"
    resources { cpu = "300m"  memory = "64MiB"  io = "8MiB/s" }
  }
  stage "reduce" {
    kind      = "reduce"
    tasks     = %d
    builtin   = [%q]
    combiner  = %t
    disk      = "64MiB"
    resources { cpu = "450m"  memory = "64MiB"  io = "8MiB/s" }
  }
}
`

// job fills in jobFile.
type job struct {
	name    string
	books   string // a pattern
	mapper  string // elements of builtin
	reducer string
	reduces int
	combine bool
}

// word is what the second job looks for, in the first books: maps that do next
// to nothing show where a scheduler puts them as well as maps that work, and
// half of the blocks as well as all, and sooner.
const (
	word     = "sheep"
	searched = 2 // books
)

var (
	wordcount = job{"wordcount", "*", `"wordcount"`, "sum", 4, true}
	search    = job{"search-fifo", "book-0[12].txt", `"grep", "` + word + `"`, "identity", 1, false}
)

func (s *scene) play(ctx context.Context) error {
	blocks, err := s.load(ctx)
	if err != nil {
		return err
	}
	all := sum(blocks)
	s.say("HDFS holds %d blocks of 1 MiB, one copy each, on the machines as %v", total(all), all)
	aware, err := s.perform(ctx, wordcount)
	if err != nil {
		return err
	}
	if err := s.compare(ctx, wordcount.name); err != nil {
		return err
	}
	if err := s.limits(ctx, wordcount.name); err != nil {
		return err
	}
	s.say("a search through the first %d books under `fifo`, which ignores locality", searched)
	if err := show(ctx, s.cl, "scheduler", "set", "fifo"); err != nil {
		return err
	}
	blind, err := s.perform(ctx, search)
	if err != nil {
		return err
	}
	if err := s.compareSearch(ctx, search.name); err != nil {
		return err
	}
	return s.locality(outcome{"3dsf", all, aware}, outcome{"fifo (ignores locality)", sum(blocks[:searched]), blind})
}

// perform runs a job and gives where its maps ran.
func (s *scene) perform(ctx context.Context, j job) (placements, error) {
	file := filepath.Join(s.dir, j.name+".hcl")
	text := fmt.Appendf(nil, jobFile, j.name, j.books, j.name, s.image, j.mapper, j.reduces, j.reducer, j.combine)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return placements{}, err
	}
	if err := show(ctx, s.cl, "job", "run", file); err != nil {
		return placements{}, err
	}
	return s.placements(ctx, j.name)
}

// load puts the text into HDFS and counts the blocks of each book on each
// machine.
func (s *scene) load(ctx context.Context) ([][]int, error) {
	count := make([][]int, len(s.bed.File.Books))
	for i, f := range s.bed.File.Books {
		s.say("loading %s", filepath.Base(f))
		if err := s.bed.HDFS.Load(ctx, f, "/books/"+filepath.Base(f), blockBytes, rotate(places, i)...); err != nil {
			return nil, err
		}
		st, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		count[i] = make([]int, len(s.bed.Nodes))
		for b := range (st.Size() + blockBytes - 1) / blockBytes {
			count[i][rotate(places, i)[int(b)%len(places)]-1]++
		}
	}
	return count, nil
}

// rotate keeps the spread uneven and not the same for each file.
func rotate(p []int, by int) []int {
	by %= len(p)
	return append(append([]int(nil), p[by:]...), p[:by]...)
}

// sum adds up the blocks of books, machine by machine.
func sum(books [][]int) []int {
	all := make([]int, len(books[0]))
	for _, b := range books {
		for k, n := range b {
			all[k] += n
		}
	}
	return all
}

func total(n []int) int {
	t := 0
	for _, v := range n {
		t += v
	}
	return t
}
