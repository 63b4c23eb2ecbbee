package facts

import (
	"fmt"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// BenchmarkSnapshotPause measures how long a snapshot of a million live tasks in 20,000 jobs
// stops Apply: Snapshot itself (pause-ms), and the longest of the next thousand entries, ends of
// tasks of as many jobs, which copy what the snapshot shares (entry-ms).
func BenchmarkSnapshotPause(b *testing.B) {
	const jobs, tasks = 20_000, 50
	f := New()
	index := uint64(0)
	apply := func(e *droverv1.Entry) time.Duration {
		index++
		e.Version, e.At = EntryVersion, int64(index)*1e6
		began := time.Now()
		if r := f.Apply(index, e); r.Err != nil || len(r.Dropped) > 0 {
			b.Fatalf("entry %d: %v, dropped %v", index, r.Err, r.Dropped)
		}
		return time.Since(began)
	}
	key := func(job, task int) *droverv1.AttemptKey {
		return Key{Job: uint64(job), Task: int32(task), Attempt: 1}.Proto(1)
	}
	apply(&droverv1.Entry{Body: &droverv1.Entry_Cluster{Cluster: &droverv1.ClusterFact{Id: "abcdef0123456789"}}})
	apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: "n", Rack: "/r", Address: "n:1",
		Allocatable: &droverv1.Resources{Cpu: 1 << 40, Memory: 1 << 60, Io: 1 << 60}, Disks: []*droverv1.Disk{{Name: "d", Io: 1 << 60, Space: 1 << 60}},
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}}}}})
	for j := 1; j <= jobs; j++ {
		spec := &jobspec.Job{Version: 1, Name: fmt.Sprint("j", j), Tenant: "default", Priority: jobspec.PriorityLow,
			Stages: []jobspec.Stage{{Name: "g", Kind: jobspec.KindGroup, Tasks: tasks, Command: []string{"x"}, Resources: jobspec.Resources{CPU: 1, Memory: 1 << 20, IO: 1}, Attempts: 2}}}
		text, err := jobspec.Encode(spec)
		if err != nil {
			b.Fatal(err)
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{ShuffleToken: "tok", Spec: string(text)}}})
		d := &droverv1.DecisionFact{Base: f.Index()}
		for t := range tasks {
			d.Actions = append(d.Actions, &droverv1.ActionFact{Kind: int32(ActPlace), Key: key(j, t), Node: 1, Locality: "any"})
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: d}})
	}
	live := 0
	for _, id := range f.JobIDs() {
		f.EachAttempt(f.Job(id), func(Key, *Task, *Attempt) { live++ })
	}
	if live != jobs*tasks {
		b.Fatalf("%d live tasks, not %d", live, jobs*tasks)
	}
	var longest, entry time.Duration
	ended := 0
	for b.Loop() {
		began := time.Now()
		s := f.Snapshot()
		longest = max(longest, time.Since(began))
		for range 1000 {
			entry = max(entry, apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 1, Epoch: f.Node(1).Epoch,
				Seen: []*droverv1.SeenAttempt{{Key: key(1+ended*17%jobs, ended/jobs), Phase: droverv1.Phase_PHASE_SUCCEEDED}}}}}))
			ended++
		}
		if s.Index() == 0 {
			b.Fatal("an empty snapshot")
		}
	}
	b.ReportMetric(float64(longest.Microseconds())/1000, "pause-ms")
	b.ReportMetric(float64(entry.Microseconds())/1000, "entry-ms")
}
