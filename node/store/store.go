package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Version is the schema that this program writes.
const Version = 1

var (
	bucketMeta    = []byte("meta")
	bucketWanted  = []byte("wanted")
	bucketRecords = []byte("records")

	keyVersion  = []byte("version")
	keyCluster  = []byte("cluster")
	keyNode     = []byte("node")
	keyEpoch    = []byte("epoch")
	keyTerm     = []byte("term")
	keyRevision = []byte("revision")
)

// Identity is who the node is to its coordinator.
type Identity struct {
	Cluster  string
	Node     int32
	Epoch    uint64
	Term     uint64
	Revision uint64 // of the wanted set; 0 = none yet
}

// Record is what the node knows of an attempt besides what is wanted of it.
type Record struct {
	Epoch     uint64 `json:"epoch"`                // in which it was made; one of an older epoch is killed and never reported
	Started   bool   `json:"started,omitempty"`    // its container was started or about to be
	StartedMS int64  `json:"started_ms,omitempty"` // Unix time
	BootID    string `json:"boot_id,omitempty"`    // of the machine at the start
	StartMono int64  `json:"start_mono,omitempty"` // nanoseconds of the monotonic clock at the start
	FrozenNS  int64  `json:"frozen_ns,omitempty"`  // of it spent frozen
	RanNS     int64  `json:"ran_ns,omitempty"`     // thawed running time before StartMono; StartMono is 0 while it is suspended
	Level     int32  `json:"level,omitempty"`      // reached, as the protocol numbers them; 0 is running
	LevelMS   int64  `json:"level_ms,omitempty"`   // since when, Unix time
	Dump      int32  `json:"dump,omitempty"`       // number of the last dump begun; each has a folder of its own
	Dumping   bool   `json:"dumping,omitempty"`    // that one may have ended the container
	Dumped    bool   `json:"dumped,omitempty"`     // that one is whole
	DumpBytes int64  `json:"dump_bytes,omitempty"` // of it
	Harness   string `json:"harness,omitempty"`    // path of the harness that its container was made with
	CPUMS     int64  `json:"cpu_ms,omitempty"`     // CPU time used on nodes before this one
	Note      string `json:"note,omitempty"`       // why a level was not reached
	End       []byte `json:"end,omitempty"`        // protobuf SeenAttempt: the verdict
}

// Ended gives the recorded verdict, or nil.
func (r Record) Ended() (*droverv1.SeenAttempt, error) {
	if len(r.End) == 0 {
		return nil, nil
	}
	s := &droverv1.SeenAttempt{}
	if err := proto.Unmarshal(r.End, s); err != nil {
		return nil, fmt.Errorf("recorded end: %w: %w", fault.Corrupt, err)
	}
	return s, nil
}

// Store is the open file. Its methods may be called from many goroutines.
type Store struct{ db *bbolt.DB }

// Open opens or makes the file. It fails with Unavailable when another daemon
// holds it, and with Unsupported for a newer schema.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 2 * time.Second, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fault.New(fault.Unavailable, "%s is held by another node daemon: stop it first", path)
	}
	if err != nil {
		return nil, fmt.Errorf("node store %s: %w", path, err)
	}
	db.MaxBatchDelay = time.Millisecond
	s := &Store{db}
	if err := db.Update(prepare); err != nil {
		db.Close()
		return nil, fmt.Errorf("node store %s: %w", path, err)
	}
	return s, nil
}

// prepare makes the buckets of a new file and checks the schema of an old one.
func prepare(tx *bbolt.Tx) error {
	for _, b := range [][]byte{bucketMeta, bucketWanted, bucketRecords} {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	switch v := number(meta.Get(keyVersion)); {
	case v == 0:
		return meta.Put(keyVersion, bytesOf(Version))
	case v > Version:
		return fault.New(fault.Unsupported, "schema %d is newer than this program's %d: upgrade drover, or remove the file to start as a new node", v, Version)
	}
	return nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// Identity reads who the node is.
func (s *Store) Identity() (id Identity, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		id = identity(tx)
		return nil
	})
	return id, err
}

func identity(tx *bbolt.Tx) Identity {
	m := tx.Bucket(bucketMeta)
	return Identity{
		Cluster:  string(m.Get(keyCluster)),
		Node:     int32(number(m.Get(keyNode))),
		Epoch:    number(m.Get(keyEpoch)),
		Term:     number(m.Get(keyTerm)),
		Revision: number(m.Get(keyRevision)),
	}
}

// Register keeps what a registration answered. Another cluster is Conflict, a
// lower term Conflict too; then nothing changes. A new epoch or number voids
// the wanted set and its revision, so that the next watch asks for a full set.
func (s *Store) Register(r *droverv1.RegisterResponse) (id Identity, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		id = identity(tx)
		if id.Cluster != "" && id.Cluster != r.GetCluster() {
			return fault.New(fault.Conflict, "the coordinator is of cluster %s, this node belongs to %s: point it at its own coordinator, or remove its data folder to move it", r.GetCluster(), id.Cluster)
		}
		if err := higher(id.Term, r.GetTerm()); err != nil {
			return err
		}
		if id.Epoch != r.GetEpoch() || id.Node != r.GetNode() {
			id.Revision = 0
			if err := tx.DeleteBucket(bucketWanted); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(bucketWanted); err != nil {
				return err
			}
		}
		id.Cluster, id.Node, id.Epoch, id.Term = r.GetCluster(), r.GetNode(), r.GetEpoch(), r.GetTerm()
		return putIdentity(tx, id)
	})
	return id, err
}

func higher(have, got uint64) error {
	if got < have {
		return fault.New(fault.Conflict, "the answer is of term %d, but term %d was seen already: it comes from a coordinator that was replaced", got, have)
	}
	return nil
}

func putIdentity(tx *bbolt.Tx, id Identity) error {
	m := tx.Bucket(bucketMeta)
	return errors.Join(
		m.Put(keyCluster, []byte(id.Cluster)),
		m.Put(keyNode, bytesOf(uint64(id.Node))),
		m.Put(keyEpoch, bytesOf(id.Epoch)),
		m.Put(keyTerm, bytesOf(id.Term)),
		m.Put(keyRevision, bytesOf(id.Revision)))
}

// Change says what Apply did to the wanted set.
type Change struct {
	Stale   bool // an old revision: nothing was done
	Put     map[ID]*droverv1.WantedAttempt
	Removed []ID // no longer wanted: named by a delta, or not named by a full set
}

// Apply makes a full set or a delta durable together with its revision. A
// lower term is Conflict. A delta that is not newer than what is kept changes
// nothing; a full set always counts. A put without spec keeps the spec that
// came first; without one to keep it is Invalid, and the caller watches again
// from revision 0. O(set) for a full set, else O(delta).
func (s *Store) Apply(w *droverv1.Wanted) (c Change, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		c = Change{Put: map[ID]*droverv1.WantedAttempt{}}
		id := identity(tx)
		if err := higher(id.Term, w.GetTerm()); err != nil {
			return err
		}
		if !w.GetFull() && w.GetRevision() <= id.Revision {
			c.Stale = true
			return nil
		}
		bucket := tx.Bucket(bucketWanted)
		for _, p := range w.GetPut() {
			if err := put(bucket, p, c.Put); err != nil {
				return err
			}
		}
		if w.GetFull() {
			c.Removed = missing(bucket, c.Put)
		}
		for _, k := range w.GetRemove() {
			c.Removed = append(c.Removed, IDOf(k))
			delete(c.Put, IDOf(k))
		}
		for _, id := range c.Removed {
			if err := bucket.Delete([]byte(id)); err != nil {
				return err
			}
		}
		id.Term, id.Revision = w.GetTerm(), w.GetRevision()
		return putIdentity(tx, id)
	})
	return c, err
}

func put(bucket *bbolt.Bucket, p *droverv1.WantedAttempt, into map[ID]*droverv1.WantedAttempt) error {
	id := IDOf(p.GetKey())
	if p.GetSpec() == nil {
		old, err := decode(bucket.Get([]byte(id)))
		if err != nil {
			return err
		}
		if old.GetSpec() == nil {
			return fault.New(fault.Invalid, "attempt %s is wanted without a spec, and none is known of it", id)
		}
		p = proto.CloneOf(p)
		p.Spec = old.GetSpec()
	}
	b, err := proto.Marshal(p)
	if err != nil {
		return err
	}
	into[id] = p
	return bucket.Put([]byte(id), b)
}

func missing(bucket *bbolt.Bucket, in map[ID]*droverv1.WantedAttempt) (ids []ID) {
	c := bucket.Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if in[ID(k)] == nil {
			ids = append(ids, ID(k))
		}
	}
	return ids
}

func decode(b []byte) (*droverv1.WantedAttempt, error) {
	w := &droverv1.WantedAttempt{}
	if err := proto.Unmarshal(b, w); err != nil {
		return nil, fmt.Errorf("wanted attempt: %w: %w", fault.Corrupt, err)
	}
	return w, nil
}

// Wanted reads the whole wanted set.
func (s *Store) Wanted() (map[ID]*droverv1.WantedAttempt, error) {
	set := map[ID]*droverv1.WantedAttempt{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketWanted).ForEach(func(k, v []byte) error {
			w, err := decode(v)
			set[ID(k)] = w
			return err
		})
	})
	return set, err
}

// PutRecord makes a record durable. Concurrent calls share a transaction.
func (s *Store) PutRecord(id ID, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.db.Batch(func(tx *bbolt.Tx) error { return tx.Bucket(bucketRecords).Put([]byte(id), b) })
}

// DeleteRecord forgets an attempt; one that is not there is no error.
func (s *Store) DeleteRecord(id ID) error {
	return s.db.Batch(func(tx *bbolt.Tx) error { return tx.Bucket(bucketRecords).Delete([]byte(id)) })
}

// Records reads all records.
func (s *Store) Records() (map[ID]Record, error) {
	all := map[ID]Record{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
			var r Record
			if err := json.Unmarshal(v, &r); err != nil {
				return fmt.Errorf("record %s: %w: %w", k, fault.Corrupt, err)
			}
			all[ID(k)] = r
			return nil
		})
	})
	return all, err
}

func bytesOf(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func number(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// ForgetRevision makes the node ask for a full set at the next watch.
func (s *Store) ForgetRevision() (id Identity, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		id = identity(tx)
		id.Revision = 0
		return putIdentity(tx, id)
	})
	return id, err
}
