package past

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// maxScanned bounds the jobs that one page of a list looks at: a page may have
// fewer jobs than its limit and still be followed by another.
const maxScanned = 20_000

// JobQuery selects ended jobs. Empty strings, no states and zero times mean all.
type JobQuery struct {
	Tenant, User, NamePrefix string
	States                   []droverv1.JobState
	SinceMS, UntilMS         int64 // ended at or after, before
	Limit                    int
	Page                     string // where the last page ended
	Visible                  func(*droverv1.JobSummary) bool
}

// Jobs returns a page of jobs, the last ended first, and where the next one begins,
// "" for none. O(limit) where one index has what is asked for, O(maxScanned) at most.
func (s *Store) Jobs(q JobQuery) (jobs []*droverv1.JobSummary, next string, err error) {
	k, prefix := q.index()
	from, err := q.from(prefix)
	if err != nil {
		return nil, "", err
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(k.bucket()).Cursor()
		scanned := 0
		for key := before(c, from); key != nil && bytes.HasPrefix(key, prefix); key, _ = c.Prev() {
			end, id := unstamp(key)
			if end < q.SinceMS {
				return nil
			}
			if len(jobs) >= q.Limit || scanned >= maxScanned {
				return nil
			}
			scanned++
			next = hex.EncodeToString(stamp(end, id))
			j := &droverv1.JobSummary{}
			key := jobKey(id)
			if err := open(kindJob, key, tx.Bucket(kindJob.bucket()).Get(key), j); err != nil {
				return err
			}
			if q.matches(j) {
				jobs = append(jobs, j)
			}
		}
		next = "" // the index ended
		return nil
	})
	if err != nil {
		return nil, "", s.damaged(err)
	}
	return jobs, next, nil
}

// index returns the index that leaves the fewest jobs to look at, and the prefix of
// its keys.
func (q *JobQuery) index() (kind, []byte) {
	switch {
	case q.User != "":
		return kindUser, text(q.User)
	case q.Tenant != "":
		return kindTenant, text(q.Tenant)
	case len(q.States) == 1:
		return kindState, stateKey(q.States[0])
	default:
		return kindEnd, nil
	}
}

// from returns the key before which a page begins.
func (q *JobQuery) from(prefix []byte) ([]byte, error) {
	switch {
	case q.Page != "":
		b, err := hex.DecodeString(q.Page)
		if err != nil || len(b) != stampLength {
			return nil, fault.New(fault.Invalid, "page %q: give next_page of the last answer", q.Page)
		}
		return append(slices.Clone(prefix), b...), nil
	case q.UntilMS > 0:
		return append(slices.Clone(prefix), stamp(q.UntilMS, 0)...), nil
	default:
		return append(slices.Clone(prefix), bytes.Repeat([]byte{0xff}, stampLength)...), nil
	}
}

// before moves c to the last key before from and returns it.
func before(c *bolt.Cursor, from []byte) []byte {
	var key []byte
	if k, _ := c.Seek(from); k == nil {
		key, _ = c.Last()
	} else {
		key, _ = c.Prev()
	}
	return key
}

func (q *JobQuery) matches(j *droverv1.JobSummary) bool {
	return (q.Tenant == "" || j.GetTenant() == q.Tenant) && (q.User == "" || j.GetSubmitter() == q.User) && strings.HasPrefix(j.GetName(), q.NamePrefix) &&
		(len(q.States) == 0 || slices.Contains(q.States, j.GetState())) && q.Visible(j)
}

// Job returns a job; NotFound if it is not here.
func (s *Store) Job(id uint64) (*droverv1.PastJob, error) {
	j, key := &droverv1.PastJob{}, jobKey(id)
	found := false
	err := s.db.View(func(tx *bolt.Tx) error {
		v := tx.Bucket(kindJob.bucket()).Get(key)
		if v == nil {
			return nil
		}
		found = true
		sum := &droverv1.JobSummary{}
		if err := open(kindJob, key, v, sum); err != nil {
			return err
		}
		_, _, packed, err := unseal(key, tx.Bucket(kindDetails.bucket()).Get(key))
		if err != nil {
			return err
		}
		details, err := s.unpack.DecodeAll(packed, nil)
		if err != nil {
			return err
		}
		err = proto.Unmarshal(details, j)
		j.Summary = sum
		return err
	})
	if err != nil {
		return nil, s.damaged(err)
	}
	if !found {
		return nil, fault.New(fault.NotFound, "job %d is not in the history", id)
	}
	return j, nil
}

// Named returns the numbers of the jobs of a name, the last ended first, at most n.
func (s *Store) Named(name string, n int) (ids []uint64) {
	prefix := text(name)
	_ = s.db.View(func(tx *bolt.Tx) error { // the closure returns no error, and an open database begins
		c := tx.Bucket(kindName.bucket()).Cursor()
		for key := before(c, append(slices.Clone(prefix), bytes.Repeat([]byte{0xff}, stampLength)...)); key != nil && bytes.HasPrefix(key, prefix) && len(ids) < n; key, _ = c.Prev() {
			_, id := unstamp(key)
			ids = append(ids, id)
		}
		return nil
	})
	return ids
}

// Attempts returns a page of a job's ended attempts by stage, task and attempt; a
// stage below 0 means all. next is where the next page begins, "" for none.
func (s *Store) Attempts(job uint64, stage int32, limit int, page string) (out []*droverv1.PastAttempt, next string, err error) {
	prefix := jobKey(job)
	if stage >= 0 {
		prefix = binary.BigEndian.AppendUint32(prefix, uint32(stage))
	}
	from := prefix
	if page != "" {
		from, err = hex.DecodeString(page)
		if err != nil || !bytes.HasPrefix(from, prefix) {
			return nil, "", fault.New(fault.Invalid, "page %q: give next_page of the last answer", page)
		}
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(kindAttempt.bucket()).Cursor()
		for key, v := c.Seek(from); key != nil && bytes.HasPrefix(key, prefix); key, v = c.Next() {
			if len(out) >= limit {
				next = hex.EncodeToString(key)
				return nil
			}
			a := &droverv1.PastAttempt{}
			if err := open(kindAttempt, key, v, a); err != nil {
				return err
			}
			out = append(out, a)
		}
		return nil
	})
	return out, next, s.damaged(err)
}

// PageAt returns the page of Attempts that begins with a task of a stage.
func PageAt(job uint64, stage, task int32) string {
	return hex.EncodeToString(attemptKey(job, stage, task, 0))
}

// damaged says of an error of a record where it is.
func (s *Store) damaged(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Corrupt, "%s is damaged: %w: start the coordinator again, it moves the file aside and keeps what is whole", s.db.Path(), err)
}
