package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/testbed"
	"github.com/drover-run/drover/internal/median"
)

// measureShortCircuit reads the files of measureHDFS from the block files of their DataNode: over
// TCP and by short circuit, by a task and by HDFS's own client with Hadoop's native library, all in
// turn. It also measures the DataNode's CPU. Without domain sockets it measures nothing.
func (b *bench) measureShortCircuit(h *testbed.HDFS, what, large, small string) ([]figure, error) {
	if h.DataNodes[0].Socket == "" {
		fmt.Fprintln(os.Stderr, "devbench: the DataNodes have no domain sockets: skipping short-circuit reads")
		return nil, nil
	}
	var tcp, files [2]dataNodeUse // of the large and the small file
	var cat, catFiles dataNodeUse // of the large one
	for i, file := range []string{large, small} {
		k, err := dataNodeOf(b.ctx, h, hdfsFolder+file)
		if err != nil {
			return nil, err
		}
		node := h.DataNodes[k-1]
		ours := []string{"-storage-address", node.IP, "-domain-socket", node.Socket}
		shell := func(flags string) func() (resourceUse, error) {
			return func() (resourceUse, error) {
				return b.shell(fmt.Sprintf("JAVA_OPTIONS=-Djava.library.path=%s ./hdfs %s -cat %s%s >/dev/null", h.Native, flags, hdfsFolder, file))
			}
		}
		works := []func() (resourceUse, error){
			func() (resourceUse, error) { return b.readByTask(h, file, ours[:2]...) },
			func() (resourceUse, error) { return b.readByTask(h, file, ours...) },
		}
		if file == large {
			works = append(works, shell(""), shell("-D dfs.client.read.shortcircuit=true -D dfs.domain.socket.path="+node.Socket))
		}
		uses, err := b.alternateWithDataNode(h, k, works...)
		if err != nil {
			return nil, err
		}
		tcp[i], files[i] = uses[0], uses[1]
		if file == large {
			cat, catFiles = uses[2], uses[3]
		}
	}
	return shortCircuitFigures(what, tcp, files, cat, catFiles), nil
}

// shortCircuitFigures compares reads by a task of the large and the small file, over TCP and from
// files, with reads of the large one by HDFS's own client.
func shortCircuitFigures(what string, tcp, files [2]dataNodeUse, cat, catFiles dataNodeUse) []figure {
	row := func(name string, ours, theirs dataNodeUse) []figure {
		p := pairResult{ours.reader, theirs.reader}
		return []figure{
			{what + name + ", wall", p.ratio(wallOf), "times", p.ratioSpread(wallOf)},
			{what + name + ", CPU", p.ratio(cpuOf), "times", p.ratioSpread(cpuOf)},
		}
	}
	// What HDFS's own client needs for the bytes is too little, beside the start of its JVM, for a
	// ratio of what the large file needs more than the small one.
	rest := pairResult{files[0].reader, tcp[0].reader}.less(pairResult{files[1].reader, tcp[1].reader})
	rows := slices.Concat(
		row("short circuit over TCP", files[0], tcp[0]),
		[]figure{{what + "short circuit over TCP, CPU of the bytes beyond the small file's", rest.ratio(cpuOf), "times", rest.ratioSpread(cpuOf)}},
		row("TCP over hdfs dfs -cat with the native library", tcp[0], cat),
		row("short circuit over hdfs dfs -cat by short circuit", files[0], catFiles))
	for _, u := range []struct {
		name string
		use  dataNodeUse
	}{{"TCP", tcp[0]}, {"short circuit", files[0]}, {"hdfs dfs -cat with the native library", cat}, {"hdfs dfs -cat by short circuit", catFiles}} {
		rows = append(rows, figure{what + u.name + ", CPU of the DataNode", median.Of(u.use.dataNode), "s",
			fmt.Sprintf("median of %d, %.2f to %.2f s", len(u.use.dataNode), slices.Min(u.use.dataNode), slices.Max(u.use.dataNode))},
			figure{what + u.name + ", CPU of the reader", medianBy(u.use.reader, cpuOf), "s", ""})
	}
	return rows
}

// dataNodeUse has the runs of a measurement, with the CPU seconds of a DataNode meanwhile.
type dataNodeUse struct {
	reader   []resourceUse
	dataNode []float64
}

// alternateWithDataNode runs measurements in turn and measures DataNode k too.
func (b *bench) alternateWithDataNode(h *testbed.HDFS, k int, works ...func() (resourceUse, error)) ([]dataNodeUse, error) {
	uses := make([]dataNodeUse, len(works))
	for i, work := range works {
		works[i] = func() (resourceUse, error) {
			before, err := h.DataNodeCPU(k)
			if err != nil {
				return resourceUse{}, err
			}
			u, err := work()
			if err != nil {
				return u, err
			}
			after, err := h.DataNodeCPU(k)
			uses[i].dataNode = append(uses[i].dataNode, (after - before).Seconds())
			return u, err
		}
	}
	all, err := b.alternate(works...)
	for i := range all {
		uses[i].reader = all[i]
	}
	return uses, err
}

// dataNodeOf returns the number of the DataNode with the only block of a file.
func dataNodeOf(ctx context.Context, h *testbed.HDFS, name string) (k int, err error) {
	c, err := client.New(client.Options{NameNodes: []string{h.NameNode}, User: "root"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	layout, err := c.Locations(ctx, name, 0, -1)
	if err != nil {
		return 0, err
	}
	if len(layout.Blocks) != 1 || len(layout.Blocks[0].Replicas) != 1 {
		return 0, fmt.Errorf("%s has no single replica of a single block: %+v", name, layout.Blocks)
	}
	ip := layout.Blocks[0].Replicas[0].IP
	k = 1 + slices.IndexFunc(h.DataNodes, func(d testbed.DataNodeInfo) bool { return d.IP == ip })
	if k == 0 {
		return 0, fmt.Errorf("%s is on %s, which is no DataNode of the test bed", name, ip)
	}
	return k, nil
}
