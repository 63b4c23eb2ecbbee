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
	var tcp, files, cat, catFiles []dataNodeUse // by large and small
	for _, file := range []string{large, small} {
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
		uses, err := b.alternateWithDataNode(h, k,
			func() (resourceUse, error) { return b.readByTask(h, file, ours[:2]...) },
			func() (resourceUse, error) { return b.readByTask(h, file, ours...) },
			shell(""),
			shell("-D dfs.client.read.shortcircuit=true -D dfs.domain.socket.path="+node.Socket))
		if err != nil {
			return nil, err
		}
		tcp, files, cat, catFiles = append(tcp, uses[0]), append(files, uses[1]), append(cat, uses[2]), append(catFiles, uses[3])
	}
	row := func(name string, ours, theirs []dataNodeUse) []figure {
		whole := pairResult{ours[0].reader, theirs[0].reader}
		rest := whole.less(pairResult{ours[1].reader, theirs[1].reader})
		return []figure{
			{what + name + ", wall", whole.ratio(wallOf), "times", whole.ratioSpread(wallOf)},
			{what + name + ", CPU", whole.ratio(cpuOf), "times", whole.ratioSpread(cpuOf)},
			{what + name + ", CPU of the bytes beyond the small file's", rest.ratio(cpuOf), "times", rest.ratioSpread(cpuOf)},
		}
	}
	rows := slices.Concat(
		row("short circuit over TCP", files, tcp),
		row("TCP over hdfs dfs -cat with the native library", tcp, cat),
		row("short circuit over hdfs dfs -cat by short circuit", files, catFiles))
	for _, u := range []struct {
		name string
		use  dataNodeUse
	}{{"TCP", tcp[0]}, {"short circuit", files[0]}, {"hdfs dfs -cat with the native library", cat[0]}, {"hdfs dfs -cat by short circuit", catFiles[0]}} {
		rows = append(rows, figure{what + u.name + ", CPU of the DataNode", median.Of(u.use.dataNode), "s",
			fmt.Sprintf("median of %d, %.2f to %.2f s", len(u.use.dataNode), slices.Min(u.use.dataNode), slices.Max(u.use.dataNode))},
			figure{what + u.name + ", CPU of the reader", medianBy(u.use.reader, cpuOf), "s", ""})
	}
	return rows, nil
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
