package store

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Change is the effect of Apply on the wanted set.
type Change struct {
	Stale   bool // outdated revision: nothing was changed
	Put     map[ID]*droverv1.WantedAttempt
	removed []ID // no longer wanted: removed by a delta, or missing in a full set
}

// Apply stores a full set or a delta together with its revision. A lower term is Conflict. A delta
// that is not newer than the stored revision changes nothing; a full set always applies, and the
// first one after a restore leaves what it does not list undecided, until a later set lists it or a
// delta removes it. A put without spec keeps the stored spec; if there is none the error is
// Invalid, and the caller must watch again from revision 0. After an ErrUnwritable it must register
// again: the set may be stored, and a delta of which it knows nothing would be stale. O(set) for a
// full set, otherwise O(delta).
func (s *Store) Apply(w *droverv1.Wanted) (c Change, err error) {
	err = s.write(func(tx *bbolt.Tx) error {
		c = Change{Put: map[ID]*droverv1.WantedAttempt{}}
		id := identity(tx)
		if err := checkTerm(id.Term, w.GetTerm()); err != nil {
			return err
		}
		if !w.GetFull() && w.GetRevision() <= id.Revision {
			c.Stale = true
			return nil
		}
		bucket := tx.Bucket(bucketWanted)
		for _, p := range w.GetPut() {
			if err := putWanted(bucket, p, c.Put); err != nil {
				return err
			}
		}
		if w.GetFull() {
			if c.removed, err = unlisted(tx, id.Restored, c.Put); err != nil {
				return err
			}
			id.Restored = false
		}
		for _, k := range w.GetRemove() {
			c.removed = append(c.removed, IDOf(k))
			delete(c.Put, IDOf(k))
		}
		for _, id := range c.removed {
			if err := remove(tx, bucketWanted, []byte(id)); err != nil {
				return err
			}
		}
		id.Term, id.Revision = w.GetTerm(), w.GetRevision()
		return putIdentity(tx, id)
	})
	if errors.Is(err, ErrUnwritable) {
		s.refetch.Store(true)
	}
	return c, err
}

// Wanted returns the whole wanted set.
func (s *Store) Wanted() (map[ID]*droverv1.WantedAttempt, error) {
	set := map[ID]*droverv1.WantedAttempt{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketWanted).ForEach(func(k, v []byte) error {
			w, err := decodeWanted(v)
			set[ID(k)] = w
			return err
		})
	})
	return set, err
}

func putWanted(bucket *bbolt.Bucket, p *droverv1.WantedAttempt, into map[ID]*droverv1.WantedAttempt) error {
	id := IDOf(p.GetKey())
	if p.GetSpec() == nil {
		old, err := decodeWanted(bucket.Get([]byte(id)))
		if err != nil {
			return err
		}
		if old.GetSpec() == nil {
			return fault.New(fault.Invalid, "attempt %s is wanted without a spec, and the store has none", id)
		}
		p = proto.CloneOf(p)
		p.Spec = old.GetSpec()
	}
	b, err := proto.Marshal(p)
	if err != nil {
		return err
	}
	into[id] = p
	return put(bucket.Tx(), bucketWanted, []byte(id), b)
}

// unlisted returns the attempts that a full set does not list. With restored, those that have
// started and not ended become undecided instead: unlisted adds them to the set.
func unlisted(tx *bbolt.Tx, restored bool, in map[ID]*droverv1.WantedAttempt) (ids []ID, err error) {
	undecided := map[ID]*droverv1.WantedAttempt{}
	c := tx.Bucket(bucketWanted).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if in[ID(k)] != nil {
			continue
		}
		w, err := decodeWanted(v)
		if err != nil {
			return nil, err
		}
		r, err := decodeRecord(tx.Bucket(bucketRecords).Get(k))
		if err != nil {
			return nil, err
		}
		switch {
		case w.GetGoal() == droverv1.Goal_GOAL_UNDECIDED:
			in[ID(k)] = w
		case restored && w.GetGoal() == droverv1.Goal_GOAL_RUN && r.Started && len(r.End) == 0:
			w.Goal, w.Level = droverv1.Goal_GOAL_UNDECIDED, max(w.GetLevel(), droverv1.Level_LEVEL_FROZEN)
			undecided[ID(k)] = w
		default:
			ids = append(ids, ID(k))
		}
	}
	for _, w := range undecided {
		if err := putWanted(tx.Bucket(bucketWanted), w, in); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func decodeWanted(b []byte) (*droverv1.WantedAttempt, error) {
	w := &droverv1.WantedAttempt{}
	if err := proto.Unmarshal(b, w); err != nil {
		return nil, fmt.Errorf("wanted attempt: %w: %w", fault.Corrupt, err)
	}
	return w, nil
}
