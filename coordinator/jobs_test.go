package coordinator

import (
	"testing"

	"github.com/drover-run/drover/coordinator/coordtest"
)

func TestAGroupJobRunsThroughANode(t *testing.T) {
	b := newBed(t, nil)
	b.node(coordtest.Info("n1"), coordtest.Succeed)
	b.until("the node is up", func() bool { id, _ := b.nodes[0].Registered(); return id > 0 })
	b.submit(groupJob("hello", 20))
	got := b.ends("hello", succeeded)
	if got.Stages[0].Done != 20 || got.Counters["app.records"] != 20 {
		t.Fatalf("%v", got)
	}
	if runs, most := b.nodes[0].Ran(); runs != 20 || most != 1 {
		t.Fatalf("%d runs, one of them %d times; want 20 runs, each once", runs, most)
	}
}

func TestAMapReduceJobPublishesItsResult(t *testing.T) {
	b := newBed(t, nil)
	b.fs.Input("hdfs:///in", 8, "n1", "n2")
	b.node(coordtest.Info("n1"), coordtest.Succeed)
	b.node(coordtest.Info("n2"), coordtest.Succeed)
	b.until("the nodes are up", func() bool {
		i, _ := b.nodes[0].Registered()
		k, _ := b.nodes[1].Registered()
		return i > 0 && k > 0
	})
	b.submit(mapReduceJob("wc", 2))
	b.ends("wc", succeeded)
	want := "[hdfs:///out/wc/_SUCCESS hdfs:///out/wc/part-00000 hdfs:///out/wc/part-00001]"
	if got := b.fs.String(); got != want {
		t.Fatalf("files are %s, want %s", got, want)
	}
}
