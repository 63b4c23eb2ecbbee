package coordinator

import (
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/jobspec"
)

// Map tasks with reducers are told whether to compress, also on a node that does not know it; no other task is.
func TestMapTasksAreToldWhetherToCompress(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 2, "n1")
	n, _ := b.addNode(oldNode("n1")) // it ignores what it is told
	b.waitUntil("the node is up", func() bool { id, _ := n.Registered(); return id > 0 })
	var mu sync.Mutex
	got := map[string]string{} // by job and kind
	n.SetBehaviour(func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		got[w.GetSpec().GetJobName()+" "+w.GetSpec().GetKind()] = w.GetSpec().GetCompressMapOutput()
		return coordtest.Succeed(w)
	})
	for name, c := range map[string]jobspec.Compression{"left-out": "", "auto": jobspec.CompressAuto, "never": jobspec.CompressNone, "always": jobspec.CompressZstd} {
		j := mapReduceJob(name, 3)
		j.Stages[0].CompressMapOutput, j.Stages[1].Resources.Memory = c, minReduceMemoryToCompress
		b.submit(j)
		b.waitForEnd(name, succeeded)
	}
	for name, c := range map[string]jobspec.Compression{"small": "", "small-always": jobspec.CompressZstd} {
		j := mapReduceJob(name, 3)
		j.Stages[0].CompressMapOutput, j.Stages[1].Resources.Memory = c, minReduceMemoryToCompress-1
		b.submit(j)
		b.waitForEnd(name, succeeded)
	}
	mu.Lock()
	defer mu.Unlock()
	for of, want := range map[string]string{
		"left-out map": "auto", "auto map": "auto", "never map": "none", "always map": "zstd",
		"small map": "none", "small-always map": "zstd", // where reducers have little memory
		"left-out reduce": "", "auto reduce": "", "never reduce": "", "always reduce": "",
	} {
		if compress, ran := got[of]; !ran || compress != want {
			t.Errorf("%s: %q, want %q (it ran: %v)", of, compress, want, ran)
		}
	}
}
