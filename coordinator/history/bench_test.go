package history

import (
	"testing"
)

// BenchmarkOpen opens a history of 100,000 jobs of one task: a coordinator does so at its start.
func BenchmarkOpen(b *testing.B) {
	const jobs = 100_000
	dir := b.TempDir()
	w, err := Open(dir, 0, jobs)
	if err != nil {
		b.Fatal(err)
	}
	all := make([]Job, jobs)
	for i := range all {
		all[i] = Job{Cluster: "c", Job: uint64(i + 1), Name: "job", Tenant: "t", State: "succeeded", SubmitMS: 1, FinishMS: 2,
			Stages: []Stage{{Name: "s", Kind: "group", CPU: 1, Tasks: []Task{{Attempts: []Attempt{{Node: "n1", State: "succeeded", PlaceMS: 1, EndMS: 2}}}}}}}
	}
	if err := w.Append(all); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		w, err := Open(dir, 0, jobs)
		if err != nil {
			b.Fatal(err)
		}
		if !w.Has(jobs) {
			b.Fatal("the last job is missing")
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
