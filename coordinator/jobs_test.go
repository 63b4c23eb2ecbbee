package coordinator

import (
	"errors"
	"testing"

	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
)

func TestGroupJobRunsOnNode(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitUntil("the node is up", func() bool { id, _ := b.nodes[0].Registered(); return id > 0 })
	b.submit(groupJob("hello", 20))
	got := b.waitForEnd("hello", succeeded)
	if got.Stages[0].Done != 20 || got.Counters["app.records"] != 20 {
		t.Fatalf("%v", got)
	}
	if runs, most := b.nodes[0].StartCounts(); runs != 20 || most != 1 {
		t.Fatalf("%d runs, one of them %d times; want 20 runs, each once", runs, most)
	}
}

func TestMapReduceJobPublishesResult(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 8, "n1", "n2")
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.addNode(coordtest.Info("n2"), coordtest.Succeed)
	b.waitUntil("the nodes are up", func() bool {
		i, _ := b.nodes[0].Registered()
		k, _ := b.nodes[1].Registered()
		return i > 0 && k > 0
	})
	b.submit(mapReduceJob("wc", 2))
	b.waitForEnd("wc", succeeded)
	want := "[hdfs:///out/wc/_SUCCESS hdfs:///out/wc/part-00000 hdfs:///out/wc/part-00001]"
	if got := b.fs.String(); got != want {
		t.Fatalf("files are %s, want %s", got, want)
	}
}

// A submission whose call broke off and is repeated while the first call still runs is no submission of somebody else.
func TestClaimOfAName(t *testing.T) {
	c := &nameClaims{keys: map[string]string{}}
	leave, err := c.claim("t", "j", "alice k1")
	if err != nil {
		t.Fatal(err)
	}
	for what, tc := range map[string]struct {
		tenant, key string
		want        error
	}{
		"the same one":        {"t", "alice k1", fault.Overloaded},
		"one of another user": {"t", "bob k1", fault.Conflict},
		"one without a key":   {"t", "", fault.Conflict},
		"of another tenant":   {"u", "alice k1", nil},
	} {
		if _, err := c.claim(tc.tenant, "j", tc.key); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", what, err, tc.want)
		}
	}
	leave()
	if _, err := c.claim("t", "j", ""); err != nil {
		t.Error(err)
	}
	if _, err := c.claim("t", "j", ""); !errors.Is(err, fault.Conflict) {
		t.Errorf("a second one without a key: %v", err)
	}
}
