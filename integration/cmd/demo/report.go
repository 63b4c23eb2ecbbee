package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// attempt is the part of `drover task status -json` that the demo needs.
type attempt struct {
	Node      string
	Locality  string
	Committed bool
	Seen      struct {
		Limits struct {
			CPUMax        string   `json:"cpu_max"`
			MemoryMax     string   `json:"memory_max"`
			MemorySwapMax string   `json:"memory_swap_max"`
			IOMax         []string `json:"io_max"`
			PidsMax       string   `json:"pids_max"`
		}
	}
}

type taskList struct {
	Tasks []struct {
		Stage    string
		Task     int
		Attempts []attempt
	}
}

// placements counts the maps that ran on each machine, and the node-local maps.
type placements struct {
	mapsPerNode []int
	local       int
}

func (s *demo) taskStatus(ctx context.Context, job string) (taskList, error) {
	var l taskList
	return l, s.cluster.JSON(ctx, &l, "task", "status", "-json", job)
}

func (s *demo) mapPlacements(ctx context.Context, job string) (placements, error) {
	p := placements{mapsPerNode: make([]int, len(s.testbed.Nodes))}
	l, err := s.taskStatus(ctx, job)
	if err != nil {
		return p, err
	}
	for _, t := range l.Tasks {
		if t.Stage != "map" || len(t.Attempts) == 0 {
			continue
		}
		a := t.Attempts[len(t.Attempts)-1]
		for k, n := range s.testbed.Nodes {
			if n.Name == a.Node {
				p.mapsPerNode[k]++
			}
		}
		if a.Locality == "node" {
			p.local++
		}
	}
	return p, nil
}

// optimalLocalMaps returns the maximum number of node-local maps of any assignment with the same
// number of maps per machine. With one copy of each block it is the sum over the machines of the
// smaller of local blocks and maps (a maximum flow).
func optimalLocalMaps(blocks, ran []int) int {
	n := 0
	for k := range blocks {
		n += min(blocks[k], ran[k])
	}
	return n
}

// outcome is a job under one scheduler: where its blocks are and where its maps ran.
type outcome struct {
	scheduler string
	blocks    []int
	maps      placements
}

// printLocality prints the runs. It returns an error if the first run is more than two maps below
// its optimum.
func (s *demo) printLocality(runs ...outcome) error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE-LOCAL MAPS\tLOCAL\tOFFLINE OPTIMUM\tMAPS\tMAPS PER MACHINE\tBLOCKS PER MACHINE")
	for _, r := range runs {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%v\t%v\n", r.scheduler, r.maps.local, optimalLocalMaps(r.blocks, r.maps.mapsPerNode), sumInts(r.maps.mapsPerNode), r.maps.mapsPerNode, r.blocks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	if r := runs[0]; r.maps.local < optimalLocalMaps(r.blocks, r.maps.mapsPerNode)-2 {
		return fmt.Errorf("%d node-local maps, the offline optimum is %d", r.maps.local, optimalLocalMaps(r.blocks, r.maps.mapsPerNode))
	}
	return nil
}

// printLimits prints the distinct limits that the kernel reported for each stage, and the number of
// attempts with them.
func (s *demo) printLimits(ctx context.Context, job string) error {
	l, err := s.taskStatus(ctx, job)
	if err != nil {
		return err
	}
	type key struct{ stage, cpu, memory, swap, io, pids string }
	count := map[key]int{}
	var order []key
	for _, t := range l.Tasks {
		for _, a := range t.Attempts {
			k := key{t.Stage, a.Seen.Limits.CPUMax, a.Seen.Limits.MemoryMax, a.Seen.Limits.MemorySwapMax, strings.Join(a.Seen.Limits.IOMax, "; "), a.Seen.Limits.PidsMax}
			if count[k] == 0 {
				order = append(order, k)
			}
			count[k]++
		}
	}
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMITS READ BACK\tATTEMPTS\tcpu.max\tmemory.max\tmemory.swap.max\tio.max\tpids.max")
	for _, k := range order {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", k.stage, count[k], k.cpu, k.memory, k.swap, k.io, k.pids)
		if k.cpu == "" || k.memory == "" || k.io == "" {
			return fmt.Errorf("an attempt of stage %s has no limits read back", k.stage)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	return nil
}
