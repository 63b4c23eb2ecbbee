package past

import (
	"bytes"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Attempt is an ended attempt with what its usage is summed by.
type Attempt struct {
	Index              uint64 // of the entry that ended it
	Tenant, User, Name string
	*droverv1.PastAttempt
}

// Job is an ended job.
type Job struct {
	Index uint64
	*droverv1.PastJob
}

// Batch is what one transaction stores.
type Batch struct {
	Index    uint64 // up to which the store has everything afterwards; a lower one changes nothing
	Attempts []Attempt
	Jobs     []Job
}

// Write stores a batch durably, all or nothing. What is there already is replaced;
// the usage of an attempt is added only when it is new. O(batch * log size).
func (s *Store) Write(b Batch) error {
	attempts := slices.Clone(b.Attempts)
	slices.SortStableFunc(attempts, func(a, b Attempt) int { return bytes.Compare(keyOf(a.PastAttempt), keyOf(b.PastAttempt)) })
	err := s.db.Update(func(tx *bolt.Tx) error {
		u := usageSums{}
		for i := range attempts {
			if err := putAttempt(tx, &attempts[i], u); err != nil {
				return err
			}
		}
		if err := u.store(tx, b.Index); err != nil {
			return err
		}
		for i := range b.Jobs {
			if err := s.putJob(tx, &b.Jobs[i]); err != nil {
				return err
			}
		}
		if b.Index > readApplied(tx) {
			return putApplied(tx, b.Index)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = max(s.applied, b.Index)
	return nil
}

func keyOf(a *droverv1.PastAttempt) []byte {
	k := a.GetKey()
	return attemptKey(k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt())
}

func putAttempt(tx *bolt.Tx, a *Attempt, u usageSums) error {
	key := keyOf(a.PastAttempt)
	b := tx.Bucket(kindAttempt.bucket())
	b.FillPercent = 0.9 // the attempts of a job mostly ascend
	if b.Get(key) == nil {
		u.add(a)
	}
	return put(b, kindAttempt, a.Index, key, a.PastAttempt)
}

func put(b *bolt.Bucket, k kind, index uint64, key []byte, m proto.Message) error {
	payload, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return b.Put(key, seal(k, index, key, payload))
}

// putJob stores a job in its indexes. A job is the same whenever it is stored again,
// but for the entry; its number may be that of another job only after the log lost
// entries, and then the other one is deleted first.
func (s *Store) putJob(tx *bolt.Tx, j *Job) error {
	sum, key := j.GetSummary(), jobKey(j.GetSummary().GetJob())
	jobs := tx.Bucket(kindJob.bucket())
	if old := jobs.Get(key); old != nil {
		was := &droverv1.JobSummary{}
		if err := open(kindJob, key, old, was); err != nil {
			return err
		}
		if err := deleteIndexes(tx, was); err != nil {
			return err
		}
	}
	jobs.FillPercent = 0.9
	if err := put(jobs, kindJob, j.Index, key, sum); err != nil {
		return err
	}
	rest := proto.CloneOf(j.PastJob)
	rest.Summary = nil
	details, err := proto.Marshal(rest)
	if err != nil {
		return err
	}
	b := tx.Bucket(kindDetails.bucket())
	b.FillPercent = 0.9
	if err := b.Put(key, seal(kindDetails, j.Index, key, s.pack.EncodeAll(details, nil))); err != nil {
		return err
	}
	for _, x := range indexesOf(sum) {
		if err := tx.Bucket(x.kind.bucket()).Put(x.key, seal(x.kind, j.Index, x.key, nil)); err != nil {
			return err
		}
	}
	return nil
}

// indexed is a key of an index.
type indexed struct {
	kind kind
	key  []byte
}

// indexesOf returns the keys of a job in all indexes.
func indexesOf(j *droverv1.JobSummary) []indexed {
	end := stamp(j.GetEndedMs(), j.GetJob())
	return []indexed{
		{kindEnd, end},
		{kindTenant, append(text(j.GetTenant()), end...)},
		{kindUser, append(text(j.GetSubmitter()), end...)},
		{kindState, append(stateKey(j.GetState()), end...)},
		{kindName, append(text(j.GetName()), end...)},
	}
}

func deleteIndexes(tx *bolt.Tx, j *droverv1.JobSummary) error {
	for _, x := range indexesOf(j) {
		if err := tx.Bucket(x.kind.bucket()).Delete(x.key); err != nil {
			return err
		}
	}
	return nil
}
