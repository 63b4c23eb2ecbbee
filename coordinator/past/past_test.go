package past

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

func openStore(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	o.NoSync = true
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closing twice is harmless
	return s
}

const day0 = int64(20_000) * dayMS

func job(id uint64, tenant, user, name string, endMS int64) Job {
	return Job{Index: id, PastJob: &droverv1.PastJob{Summary: &droverv1.JobSummary{Job: id, Tenant: tenant, Submitter: user, Name: name,
		State: droverv1.JobState_JOB_STATE_SUCCEEDED, EndedMs: endMS}, Spec: `{"name":"` + name + `"}`}}
}

func attempt(index, id uint64, task, n int32, tenant, user, name string, endMS int64) Attempt {
	return Attempt{Index: index, Tenant: tenant, User: user, Name: name, PastAttempt: &droverv1.PastAttempt{
		Key: &droverv1.AttemptKey{Job: id, Task: task, Attempt: n, Run: 1}, Node: fmt.Sprintf("node-%04d", id%500), State: "succeeded", Locality: "node",
		PlacedMs: endMS - hourMS, StartedMs: endMS - hourMS + 500, EndedMs: endMS, WaitingMs: 1234, StartingMs: 500, RunningMs: hourMS - 700, CommittingMs: 200, Winner: true,
		Usage:      &droverv1.Usage{CpuMs: 1000, MemoryPeak: 400 << 20, ReadBytes: 128 << 20, WriteBytes: 64 << 20},
		Demand:     &droverv1.Resources{Cpu: 2000, Memory: 1 << 30, Io: 10 << 20},
		Limits:     &droverv1.Limits{CpuMax: "200000 100000", MemoryMax: "1073741824", MemorySwapMax: "0", IoMax: []string{"254:16 rbps=10485760 wbps=10485760 riops=max wiops=max"}, PidsMax: "4096"},
		InputBytes: 128 << 20}}
}

func everybody(*droverv1.JobSummary) bool { return true }

func anybody(string, string) bool { return true }

// list returns the numbers of all jobs of a query, in pages.
func list(t testing.TB, s *Store, q JobQuery) (ids []uint64) {
	t.Helper()
	if q.Visible == nil {
		q.Visible = everybody
	}
	for {
		jobs, next, err := s.Jobs(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			ids = append(ids, j.GetJob())
		}
		if next == "" {
			return ids
		}
		q.Page = next
	}
}

// A list in pages of any size is what a look at every job gives.
func TestListsAreWhatALookAtEveryJobGives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "past")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s, err := Open(dir, Options{NoSync: true})
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		names := rapid.SampledFrom([]string{"a", "b", "ab", "a\x00b"})
		var all []*droverv1.JobSummary
		n := rapid.IntRange(0, 40).Draw(rt, "jobs")
		for i := range n {
			j := job(uint64(i+1), names.Draw(rt, "tenant"), names.Draw(rt, "user"), names.Draw(rt, "name"), day0+int64(rapid.IntRange(0, 20).Draw(rt, "end")))
			j.Summary.State = droverv1.JobState(rapid.IntRange(4, 6).Draw(rt, "state"))
			if err := s.Write(Batch{Index: uint64(i), Jobs: []Job{j}}); err != nil {
				rt.Fatal(err)
			}
			all = append(all, j.GetSummary())
		}
		q := JobQuery{Limit: rapid.IntRange(1, 10).Draw(rt, "limit"), Visible: func(j *droverv1.JobSummary) bool { return j.GetJob()%7 != 0 }}
		pick := rapid.Bool()
		if pick.Draw(rt, "by tenant") {
			q.Tenant = names.Draw(rt, "tenant asked for")
		}
		if pick.Draw(rt, "by user") {
			q.User = names.Draw(rt, "user asked for")
		}
		if pick.Draw(rt, "by name") {
			q.NamePrefix = "a"
		}
		for st := 4; st <= 6; st++ {
			if pick.Draw(rt, "state") {
				q.States = append(q.States, droverv1.JobState(st))
			}
		}
		if pick.Draw(rt, "since") {
			q.SinceMS = day0 + int64(rapid.IntRange(0, 20).Draw(rt, "since ms"))
		}
		if pick.Draw(rt, "until") {
			q.UntilMS = day0 + int64(rapid.IntRange(0, 20).Draw(rt, "until ms"))
		}
		var want []uint64
		slices.SortFunc(all, func(a, b *droverv1.JobSummary) int {
			if a.GetEndedMs() != b.GetEndedMs() {
				return int(b.GetEndedMs() - a.GetEndedMs())
			}
			return int(b.GetJob()) - int(a.GetJob())
		})
		for _, j := range all {
			if (q.Tenant == "" || j.GetTenant() == q.Tenant) && (q.User == "" || j.GetSubmitter() == q.User) && strings.HasPrefix(j.GetName(), q.NamePrefix) &&
				(len(q.States) == 0 || slices.Contains(q.States, j.GetState())) && j.GetEndedMs() >= q.SinceMS && (q.UntilMS == 0 || j.GetEndedMs() < q.UntilMS) && q.Visible(j) {
				want = append(want, j.GetJob())
			}
		}
		if got := list(t, s, q); !slices.Equal(got, want) {
			rt.Fatalf("%+v: %v, want %v", q, got, want)
		}
	})
}

// What is written again is there once, and used once.
func TestAnAttemptCountsOnce(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	b := Batch{Index: 3, Attempts: []Attempt{attempt(1, 7, 0, 1, "a", "u", "n", day0), attempt(2, 7, 1, 1, "a", "u", "n", day0+dayMS)}, Jobs: []Job{job(7, "a", "u", "n", day0)}}
	for range 3 {
		if err := s.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	lost := b.Attempts[0]
	lost.PastAttempt = proto.CloneOf(lost.PastAttempt)
	lost.State, lost.Index = "lost", 4
	if err := s.Write(Batch{Index: 4, Attempts: []Attempt{lost}}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Usage(UsageQuery{Visible: anybody})
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	want := &droverv1.UsageRow{Attempts: 2, CpuMs: 2000, CpuHours: 4, MemoryGibHours: 2, IoGib: 0.375, IoMibHours: 20, OccupiedHours: 2}
	if !proto.Equal(rows[0], want) {
		t.Errorf("usage %v, want %v", rows[0], want)
	}
	byDay, err := s.Usage(UsageQuery{Visible: anybody, SinceMS: day0 + dayMS, Groups: []droverv1.UsageGroup{droverv1.UsageGroup_USAGE_GROUP_DAY, droverv1.UsageGroup_USAGE_GROUP_USER}})
	if err != nil || len(byDay) != 1 || byDay[0].GetDay() != "2024-10-05" || byDay[0].GetUser() != "u" || byDay[0].GetAttempts() != 1 {
		t.Errorf("usage by day: %v, %v", byDay, err)
	}
	list, next, err := s.Attempts(7, -1, 10, "")
	if err != nil || next != "" || len(list) != 2 || list[0].GetState() != "lost" {
		t.Errorf("attempts: %v, %v", list, err)
	}
	if s.Applied() != 4 {
		t.Errorf("applied %d, want 4", s.Applied())
	}
}

// TestUsageUntilADay: usage until a day has nothing of that day, and usage until later has all of it.
func TestUsageUntilADay(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{})
	midnight := day0 - day0%dayMS + dayMS
	if err := s.Write(Batch{Index: 1, Attempts: []Attempt{attempt(1, 7, 0, 1, "a", "u", "n", midnight-1), attempt(2, 7, 1, 1, "a", "u", "n", midnight)}}); err != nil {
		t.Fatal(err)
	}
	for until, want := range map[int64]int64{0: 2, 1: 0, midnight: 1, midnight + 1: 2} {
		rows, err := s.Usage(UsageQuery{Visible: anybody, UntilMS: until})
		if err != nil {
			t.Fatal(err)
		}
		var got int64
		for _, r := range rows {
			got += r.GetAttempts()
		}
		if got != want {
			t.Errorf("until %d: %d attempts, want %d", until, got, want)
		}
	}
}

// The oldest jobs go first when there is too much or they are too old, with all that
// belongs to them; usage stays, without names.
func TestLimitsOfSizeAndAge(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{MaxBytes: 1 << 20, MaxAge: 10 * 24 * time.Hour})
	for i := range uint64(40) {
		b := Batch{Index: i + 1, Jobs: []Job{job(i+1, "a", "u", fmt.Sprint("n", i), day0+int64(i)*dayMS/2)}}
		for k := range int32(200) {
			b.Attempts = append(b.Attempts, attempt(i+1, i+1, k, 1, "a", "u", fmt.Sprint("n", i), day0+int64(i)*dayMS/2))
		}
		if err := s.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	now := time.UnixMilli(day0 + 20*dayMS)
	if !s.OverLimit() {
		t.Error("it is not over its limit before")
	}
	if _, err := s.Prune(now); err != nil {
		t.Fatal(err)
	}
	used, _, err := s.Size()
	if err != nil || used > 1<<20 || s.OverLimit() {
		t.Errorf("%d bytes are in use (%v), over the limit: %v", used, err, s.OverLimit())
	}
	ids := list(t, s, JobQuery{Limit: 7})
	if len(ids) == 0 || len(ids) > 20 || ids[0] != 40 || !slices.IsSortedFunc(ids, func(a, b uint64) int { return int(b) - int(a) }) {
		t.Errorf("jobs that are left: %v", ids)
	}
	for _, id := range ids {
		if l, _, err := s.Attempts(id, -1, 1000, ""); err != nil || len(l) != 200 {
			t.Errorf("job %d has %d attempts (%v)", id, len(l), err)
		}
	}
	oldest := ids[len(ids)-1]
	if l, _, err := s.Attempts(oldest-1, -1, 1000, ""); err != nil || len(l) != 0 || s.Has(oldest-1) || len(s.Named(fmt.Sprint("n", oldest-2), 9)) != 0 {
		t.Errorf("something of job %d is left: %d attempts", oldest-1, len(l))
	}
	rows, err := s.Usage(UsageQuery{Visible: anybody})
	if err != nil || len(rows) != 1 || rows[0].GetAttempts() != 200*20 { // of the last ten days
		t.Errorf("usage: %v, %v", rows, err)
	}
	named, err := s.Usage(UsageQuery{Visible: anybody, Groups: []droverv1.UsageGroup{droverv1.UsageGroup_USAGE_GROUP_JOB}})
	if err != nil || len(named) > len(ids)+2 {
		t.Errorf("usage of %d names, %d jobs are left (%v)", len(named), len(ids), err)
	}
}

// Samples are thinned with age, and a list of them has no gap and no overlap.
func TestSamplesAreThinnedWithAge(t *testing.T) {
	s := openStore(t, t.TempDir(), Options{MaxAge: 60 * 24 * time.Hour})
	start := time.UnixMilli(day0)
	const days = 4
	for i := 1; i <= days*24*60; i++ {
		at := start.Add(time.Duration(i) * time.Minute)
		if err := s.AddSamples(at.UnixMilli(), map[string]*droverv1.PastSample{"": {Share: 0.5, NodesUp: 3}, "a": {Share: float64(i)}}); err != nil {
			t.Fatal(err)
		}
		if i%(12*60) == 0 {
			if _, err := s.Prune(at); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tenant := range []string{"", "a"} {
		got, err := s.Samples(tenant, 0, start.Add(days*24*time.Hour).UnixMilli(), 0)
		if err != nil {
			t.Fatal(err)
		}
		covered := int64(0)
		for i, m := range got {
			covered += m.GetPeriodMs()
			if i > 0 && m.GetAtMs()-m.GetPeriodMs() > got[i-1].GetAtMs() {
				t.Fatalf("tenant %q: a gap between %v and %v", tenant, got[i-1], m)
			}
		}
		if whole := int64(days * dayMS); covered < whole-hourMS || covered > whole+2*hourMS || len(got) > 2*24*60+2*24*6+30 {
			t.Errorf("tenant %q: %d samples over %d of %d ms", tenant, len(got), covered, whole)
		}
	}
	got, err := s.Samples("a", 0, start.Add(days*24*time.Hour).UnixMilli(), 50)
	if err != nil || len(got) > 50 || len(got) < 25 {
		t.Errorf("%d samples of at most 50 (%v)", len(got), err)
	}
	if first := got[0]; first.GetShare() < 1 || first.GetShare() > 400 {
		t.Errorf("the first is %v", first)
	}
	if got, err := s.Samples("nobody", 0, day0*2, 0); err != nil || len(got) != 0 {
		t.Errorf("samples of nobody: %v, %v", got, err)
	}
}

// Whatever happens to the file, a job is then there as it was, or gone; nothing
// panics; and a change that has an effect is named.
func TestDamageIsNamedAndCured(t *testing.T) {
	rounds := 400
	switch {
	case os.Getenv("DROVER_SOAK") != "":
		rounds = 10_000
	case testing.Short():
		rounds = 60
	}
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	want := map[uint64]string{}
	for i := range uint64(60) {
		j := job(i+1, fmt.Sprint("t", i%3), "u", fmt.Sprint("n", i), day0+int64(i))
		b := Batch{Index: i + 1, Jobs: []Job{j}}
		for k := range int32(5) {
			b.Attempts = append(b.Attempts, attempt(i+1, i+1, k, 1, "a", "u", "n", day0))
		}
		if err := s.Write(b); err != nil {
			t.Fatal(err)
		}
		want[i+1] = j.GetSpec()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, FileName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	named, kept := 0, 0
	for round := range rounds {
		data := slices.Clone(whole)
		i := random.IntN(len(data))
		what := ""
		switch random.IntN(8) {
		case 0:
			data, what = data[:i], fmt.Sprintf("cut at %d", i)
		case 1:
			i = i / 4096 * 4096
			clear(data[i:min(i+4096, len(data))])
			what = fmt.Sprintf("page at %d cleared", i)
		default:
			data[i] ^= 1 << random.IntN(8)
			what = fmt.Sprintf("bit flipped at %d", i)
		}
		in := filepath.Join(t.TempDir(), "d")
		if err := os.MkdirAll(in, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(in, FileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(in, Options{NoSync: true})
		if err != nil {
			t.Fatalf("round %d, %s: %v", round, what, err)
		}
		ids := list(t, s, JobQuery{Limit: 50})
		if d := s.Repaired(); d != nil {
			named++
			if !strings.Contains(d.What.Error(), FileName) || s.Applied() != 0 {
				t.Errorf("round %d, %s: %v; applied %d", round, what, d.What, s.Applied())
			}
		} else if len(ids) != len(want) || s.Applied() != 60 {
			t.Fatalf("round %d, %s: %d jobs are left, applied %d, and nobody said so", round, what, len(ids), s.Applied())
		}
		for _, id := range ids {
			j, err := s.Job(id)
			if err != nil || j.GetSpec() != want[id] {
				t.Fatalf("round %d, %s: job %d is %v (%v)", round, what, id, j, err)
			}
			kept++
		}
		if err := s.Write(Batch{Index: 61, Jobs: []Job{job(61, "a", "u", "n", day0)}}); err != nil {
			t.Fatalf("round %d, %s: it cannot be written: %v", round, what, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d named, %d of %d jobs kept", named, rounds, kept, rounds*len(want))
	if named == 0 || kept < rounds*len(want)/2 {
		t.Error("the test shows nothing, or nearly nothing was kept")
	}
}

// A rotten bit of the version is damage, and does not look like a newer program's file: that stops the coordinator, and
// no other program cures it. Files of before versions had a seal are read.
func TestDamagedVersionIsNamed(t *testing.T) {
	sealed := seal(kindMeta, schemaVersion, versionKey, nil)
	type file struct {
		version []byte
		want    string // what was found damaged; "" for nothing
		class   error  // of what Open returns
	}
	files := map[string]file{
		"sealed":                {version: sealed},
		"of before the seal":    {version: unsealedVersion},
		"of a newer program":    {version: seal(kindMeta, schemaVersion+1, versionKey, nil), class: fault.Unsupported},
		"of another bucket":     {version: seal(kindJob, schemaVersion, versionKey, nil), want: "version"},
		"of no program":         {version: seal(kindMeta, 0, versionKey, nil), want: "version"},
		"of another key":        {version: seal(kindMeta, schemaVersion, appliedKey, nil), want: "checksum"},
		"without the last byte": {version: sealed[:len(sealed)-1], want: "12 bytes"},
		"empty":                 {version: []byte{}, want: "0 bytes"},
	}
	for name, whole := range map[string][]byte{"sealed": sealed, "not sealed": unsealedVersion} {
		for bit := range 8 * len(whole) {
			bad := bytes.Clone(whole)
			bad[bit/8] ^= 1 << (bit % 8)
			files[fmt.Sprintf("%s, bit %d flipped", name, bit)] = file{version: bad, want: `"meta"`}
		}
	}
	for name, f := range files {
		dir := t.TempDir()
		s := openStore(t, dir, Options{NoSync: true})
		err := s.Write(Batch{Index: 1, Jobs: []Job{job(1, "t", "u", "n", day0)}})
		if err == nil {
			err = s.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(kindMeta.bucket()).Put(versionKey, f.version) })
		}
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		s, err = Open(dir, Options{NoSync: true})
		if err != nil {
			if f.class == nil || !errors.Is(err, f.class) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		d := s.Repaired()
		if f.class != nil || (d != nil) != (f.want != "") || d != nil && !strings.Contains(d.What.Error(), f.want) {
			t.Errorf("%s: found %+v, want %q", name, d, f.want)
		}
		if !s.Has(1) {
			t.Errorf("%s: the job is lost", name)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A mend that was cut short when the damaged file had lost its name and the new one had none is finished by the next start.
func TestMendGoesOnAfterACrash(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Options{})
	if err := s.Write(Batch{Index: 1, Jobs: []Job{job(1, "t", "u", "n", day0)}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, FileName)
	if err := os.Rename(path, path+".mending"); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir, Options{})
	defer s.Close()
	if !s.Has(1) {
		t.Error("the jobs of the mended file are lost")
	}
}
