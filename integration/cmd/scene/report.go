package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// attempt is what `drover task status -json` tells of one attempt.
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

// placements counts, for each machine, the maps that it ran, and how many of
// all ran beside their data.
type placements struct {
	ran   []int
	local int
}

func (s *scene) tasks(ctx context.Context, job string) (taskList, error) {
	var l taskList
	return l, s.cl.JSON(ctx, &l, "task", "status", "-json", job)
}

func (s *scene) placements(ctx context.Context, job string) (placements, error) {
	p := placements{ran: make([]int, len(s.bed.Nodes))}
	l, err := s.tasks(ctx, job)
	if err != nil {
		return p, err
	}
	for _, t := range l.Tasks {
		if t.Stage != "map" || len(t.Attempts) == 0 {
			continue
		}
		a := t.Attempts[len(t.Attempts)-1]
		for k, n := range s.bed.Nodes {
			if n.Name == a.Node {
				p.ran[k]++
			}
		}
		if a.Locality == "node" {
			p.local++
		}
	}
	return p, nil
}

// optimum is the most maps that any assignment can put beside their data when
// each machine runs as many as it did: with one copy of each block that is the
// smaller of what lies there and what ran there, summed (a maximum flow).
func optimum(blocks, ran []int) int {
	n := 0
	for k := range blocks {
		n += min(blocks[k], ran[k])
	}
	return n
}

// outcome is a job under one scheduler: where its blocks lie and its maps ran.
type outcome struct {
	scheduler string
	blocks    []int
	maps      placements
}

// locality prints the runs; the first must come within two of its optimum.
func (s *scene) locality(runs ...outcome) error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MAPS BESIDE THEIR DATA\tLOCAL\tOFFLINE OPTIMUM\tOF\tRUN BY EACH MACHINE\tBLOCKS ON EACH")
	for _, r := range runs {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%v\t%v\n", r.scheduler, r.maps.local, optimum(r.blocks, r.maps.ran), total(r.maps.ran), r.maps.ran, r.blocks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	if r := runs[0]; r.maps.local < optimum(r.blocks, r.maps.ran)-2 {
		return fmt.Errorf("%d maps ran beside their data, the offline optimum is %d", r.maps.local, optimum(r.blocks, r.maps.ran))
	}
	return nil
}

// limits prints what the kernel held for each stage: the distinct values read
// back, and how many attempts had them.
func (s *scene) limits(ctx context.Context, job string) error {
	l, err := s.tasks(ctx, job)
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
