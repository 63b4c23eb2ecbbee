package past

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// SampleEvery is the time between two samples.
const SampleEvery = time.Minute

// resolutions are the periods of samples and how long they are kept; each is the
// mean of samples of the one before it.
var resolutions = [...]struct{ period, keep time.Duration }{
	{SampleEvery, 48 * time.Hour},
	{10 * time.Minute, 30 * 24 * time.Hour},
	{2 * time.Hour, 0}, // as long as jobs
}

func sampleKey(resolution int, tenant string, ms int64) []byte {
	return binary.BigEndian.AppendUint64(samplePrefix(resolution, tenant), uint64(max(ms, 0)))
}

func samplePrefix(resolution int, tenant string) []byte {
	return append([]byte{byte(resolution)}, text(tenant)...)
}

// AddSamples stores a sample of each tenant ("" is the cluster), taken at a time, and
// at the end of a coarser period the means of it. O(tenants).
func (s *Store) AddSamples(atMS int64, samples map[string]*droverv1.PastSample) error {
	err := s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(kindSample.bucket())
		for tenant, m := range samples {
			m.AtMs, m.PeriodMs = atMS, SampleEvery.Milliseconds()
			if err := put(b, kindSample, 0, sampleKey(0, tenant, atMS), m); err != nil {
				return err
			}
		}
		for r := 1; r < len(resolutions); r++ {
			if err := condense(b, r, atMS); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("history: samples: %w", err)
	}
	return nil
}

// condense stores the means of the last whole period of a resolution, unless they
// are there. Which tenants have samples is known by those of the finer resolution.
func condense(b *bolt.Bucket, r int, nowMS int64) error {
	period := resolutions[r].period.Milliseconds()
	end := nowMS / period * period
	if b.Get(sampleKey(r, "", end)) != nil || end == 0 {
		return nil
	}
	finer := []byte{byte(r - 1)}
	c := b.Cursor()
	for key, _ := c.Seek(finer); key != nil && bytes.HasPrefix(key, finer); {
		tenant, _, ok := bytes.Cut(key[1:], []byte{0})
		if !ok {
			return fmt.Errorf("a key of a sample without a tenant: %x", key)
		}
		name := string(tenant)
		mean, err := meanOf(b, r-1, name, end-period, end)
		if err != nil {
			return err
		}
		if mean != nil || name == "" { // the cluster's marks the period as done
			if mean == nil {
				mean = &droverv1.PastSample{}
			}
			mean.AtMs, mean.PeriodMs = end, period
			if err := put(b, kindSample, 0, sampleKey(r, name, end), mean); err != nil {
				return err
			}
			c = b.Cursor() // a cursor does not outlive a write
		}
		key, _ = c.Seek(append(samplePrefix(r-1, name), bytes.Repeat([]byte{0xff}, 9)...))
	}
	return nil
}

// meanOf returns the mean of a tenant's samples after from and up to to, or nil.
func meanOf(b *bolt.Bucket, r int, tenant string, from, to int64) (*droverv1.PastSample, error) {
	var sum sampleSum
	prefix := samplePrefix(r, tenant)
	c := b.Cursor()
	for key, v := c.Seek(sampleKey(r, tenant, from+1)); key != nil && bytes.HasPrefix(key, prefix) && sampleTime(key) <= to; key, v = c.Next() {
		m := &droverv1.PastSample{}
		if err := open(kindSample, key, v, m); err != nil {
			return nil, err
		}
		sum.add(m)
	}
	return sum.mean(), nil
}

func sampleTime(key []byte) int64 { return int64(binary.BigEndian.Uint64(key[len(key)-8:])) }

// sampleSum adds up samples.
type sampleSum struct {
	n float64
	v [10]float64
	r [6]float64

	longest float64 // cycle, ms
}

func (s *sampleSum) add(m *droverv1.PastSample) {
	s.n++
	for i, x := range [...]float64{m.GetShare(), m.GetFairShare(), m.GetJobsLive(), m.GetTasksRunning(), m.GetTasksSuspended(), m.GetTasksWaiting(),
		m.GetNodesUp(), m.GetDecisionsPerSecond(), m.GetCycleMs(), m.GetDroppedPerSecond()} {
		s.v[i] += x
	}
	s.longest = max(s.longest, m.GetLongestCycleMs())
	u, c := m.GetUsed(), m.GetCapacity()
	for i, x := range [...]int64{u.GetCpu(), u.GetMemory(), u.GetIo(), c.GetCpu(), c.GetMemory(), c.GetIo()} {
		s.r[i] += float64(x)
	}
}

func (s *sampleSum) mean() *droverv1.PastSample {
	if s.n == 0 {
		return nil
	}
	v := func(i int) float64 { return s.v[i] / s.n }
	r := func(i int) *droverv1.Resources {
		return &droverv1.Resources{Cpu: int64(s.r[i] / s.n), Memory: int64(s.r[i+1] / s.n), Io: int64(s.r[i+2] / s.n)}
	}
	return &droverv1.PastSample{Share: v(0), FairShare: v(1), JobsLive: v(2), TasksRunning: v(3), TasksSuspended: v(4), TasksWaiting: v(5),
		NodesUp: v(6), DecisionsPerSecond: v(7), CycleMs: v(8), DroppedPerSecond: v(9), LongestCycleMs: s.longest, Used: r(0), Capacity: r(3)}
}

// Samples returns the samples of a tenant ("" is the cluster) from since to until,
// oldest first: the coarse ones first, then the finer ones that are kept. More than
// limit are thinned to means of runs of equal length.
func (s *Store) Samples(tenant string, sinceMS, untilMS int64, limit int) ([]*droverv1.PastSample, error) {
	var out []*droverv1.PastSample
	err := s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(kindSample.bucket())
		from := sinceMS
		for r := len(resolutions) - 1; r >= 0; r-- {
			to := untilMS
			if r > 0 { // the finer one continues from its first sample on
				if key, _ := b.Cursor().Seek(sampleKey(r-1, tenant, 0)); key != nil && bytes.HasPrefix(key, samplePrefix(r-1, tenant)) {
					to = min(to, sampleTime(key))
				}
			}
			prefix := samplePrefix(r, tenant)
			c := b.Cursor()
			for key, v := c.Seek(sampleKey(r, tenant, from)); key != nil && bytes.HasPrefix(key, prefix) && sampleTime(key) <= to; key, v = c.Next() {
				m := &droverv1.PastSample{}
				if err := open(kindSample, key, v, m); err != nil {
					return err
				}
				out = append(out, m)
				from = sampleTime(key) + 1
			}
		}
		return nil
	})
	if err != nil {
		return nil, s.damaged(err)
	}
	return thin(out, limit), nil
}

// thin returns at most limit samples: means of runs of equal length.
func thin(in []*droverv1.PastSample, limit int) []*droverv1.PastSample {
	if limit <= 0 || len(in) <= limit {
		return in
	}
	n := (len(in) + limit - 1) / limit
	var out []*droverv1.PastSample
	for at := 0; at < len(in); at += n {
		run := in[at:min(at+n, len(in))]
		var sum sampleSum
		period := int64(0)
		for _, m := range run {
			sum.add(m)
			period += m.GetPeriodMs()
		}
		mean := sum.mean()
		mean.AtMs, mean.PeriodMs = run[len(run)-1].GetAtMs(), period
		out = append(out, mean)
	}
	return out
}
