package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// schemaVersion is the schema that this program writes.
const schemaVersion = 2

var (
	bucketMeta    = []byte("meta")
	bucketWanted  = []byte("wanted")
	bucketRecords = []byte("records")
	buckets       = [][]byte{bucketMeta, bucketWanted, bucketRecords}

	keyVersion  = []byte("version")
	keySum      = []byte("sum")
	keyCluster  = []byte("cluster")
	keyNode     = []byte("node")
	keyEpoch    = []byte("epoch")
	keyTerm     = []byte("term")
	keyRevision = []byte("revision")
	keyDaemon   = []byte("daemon")
	keyMachine  = []byte("machine")

	keyClusterEpoch = []byte("cluster_epoch")
	keyRestored     = []byte("restored")
)

// Identity is the node's identity at its coordinator.
type Identity struct {
	Cluster  string
	Node     int32
	Epoch    uint64
	Term     uint64
	Revision uint64 // of the wanted set; 0 = none yet

	ClusterEpoch uint64 // the coordinator's: another one means that it was restored
	// Restored: no full set has come since the coordinator was restored. What the next one
	// does not list is undecided, and until it is applied the node has no lease.
	Restored bool
}

// Record is the node's own state of an attempt, in addition to the wanted state.
type Record struct {
	Epoch        uint64 `json:"epoch"`                    // in which the record was made; attempts of an older epoch are killed and not reported
	Started      bool   `json:"started,omitempty"`        // its container was started or about to be
	StartedMS    int64  `json:"started_ms,omitempty"`     // Unix time
	BootID       string `json:"boot_id,omitempty"`        // of the machine at the start
	StartMono    int64  `json:"start_mono,omitempty"`     // nanoseconds of the monotonic clock at the start
	FrozenNS     int64  `json:"frozen_ns,omitempty"`      // time since StartMono spent frozen; always 0 today
	RanNS        int64  `json:"ran_ns,omitempty"`         // unfrozen running time before StartMono; StartMono is 0 while suspended
	Waiting      bool   `json:"waiting,omitempty"`        // a reduce task started before all its maps were done, and they are not yet
	WaitedNS     int64  `json:"waited_ns,omitempty"`      // running time until they were: it is no running time of the task
	Level        int32  `json:"level,omitempty"`          // reached, as the protocol numbers levels; 0 is running
	LevelSinceMS int64  `json:"level_since_ms,omitempty"` // Unix time at which Level was reached
	DumpNumber   int32  `json:"dump_number,omitempty"`    // of the last dump begun; each has its own folder
	Dumping      bool   `json:"dumping,omitempty"`        // the dump DumpNumber may have ended the container
	Dumped       bool   `json:"dumped,omitempty"`         // the dump DumpNumber is complete
	Stopped      bool   `json:"stopped,omitempty"`        // restored, and its processes are still stopped: see runtime.StoppedRestorer
	DumpBytes    int64  `json:"dump_bytes,omitempty"`     // size of the dump
	HarnessPath  string `json:"harness_path,omitempty"`   // of the harness that the container was made with
	Usage        *Usage `json:"usage,omitempty"`          // in all, when it was last checkpointed
	LevelNote    string `json:"level_note,omitempty"`     // why a level was not reached
	End          []byte `json:"end,omitempty"`            // protobuf SeenAttempt: how the attempt ended
	PriorUsage
}

// Usage is what an attempt has used.
type Usage struct {
	CPUMS       int64 `json:"cpu_ms,omitempty"` // CPU time
	MemoryPeak  int64 `json:"memory_peak,omitempty"`
	ReadBytes   int64 `json:"read_bytes,omitempty"`
	WriteBytes  int64 `json:"write_bytes,omitempty"`
	ThrottledMS int64 `json:"throttled_ms,omitempty"`
}

// PriorUsage is the Usage that the counters of the attempt's cgroup do not have: on earlier nodes, and in cgroups that a
// reboot has removed.
type PriorUsage struct {
	CPUMS       int64 `json:"prior_cpu_ms,omitempty"`
	MemoryPeak  int64 `json:"prior_memory_peak,omitempty"`
	ReadBytes   int64 `json:"prior_read_bytes,omitempty"`
	WriteBytes  int64 `json:"prior_write_bytes,omitempty"`
	ThrottledMS int64 `json:"prior_throttled_ms,omitempty"`
}

// DecodeEnd returns the recorded end, or nil.
func (r Record) DecodeEnd() (*droverv1.SeenAttempt, error) {
	if len(r.End) == 0 {
		return nil, nil
	}
	s := &droverv1.SeenAttempt{}
	if err := proto.Unmarshal(r.End, s); err != nil {
		return nil, fmt.Errorf("recorded end: %w: %w", fault.Corrupt, err)
	}
	return s, nil
}

// Store is the open file. It is safe for concurrent use.
type Store struct {
	db      *bbolt.DB
	disk    Disk
	records group
	refetch atomic.Bool // Apply failed to write: the caller may not have all that the stored revision stands for
}

// Disk is told of the transactions of a file, for simulations of a loss of power and of a disk that does not take what is
// written. Its functions may be nil.
type Disk struct {
	// Writing is called before each transaction, with its file and whether it will be acknowledged only when it is synced.
	Writing func(path string, synced bool)
	// Fault is called before each transaction and after it, and returns the disk's error: that nothing was written, or
	// that everything was.
	Fault func(written bool) error
}

// lockTimeout is how long another daemon may still have the file open.
const lockTimeout = 2 * time.Second

// Open opens the file or makes it. It fails with Unavailable if another daemon
// has it open, with Unsupported for a newer schema, and with Corrupt, naming the file, for
// one that is damaged, which it leaves as it is.
func Open(path string) (*Store, error) {
	if err := makeFile(path); err != nil {
		return nil, fmt.Errorf("node store %s: %w", path, err)
	}
	if err := verify(path); err != nil {
		return nil, err
	}
	db, err := openDB(path)
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fault.New(fault.Unavailable, "%s is in use by another node daemon: stop it first", path)
	}
	if err != nil {
		return nil, fmt.Errorf("node store %s: %w", path, err)
	}
	s := &Store{db: db}
	s.records.write = s.write
	if err := db.Update(initSchema); err != nil {
		db.Close()
		return nil, fmt.Errorf("node store %s: %w", path, err)
	}
	return s, nil
}

// openDB opens a verified file. The list of free pages is not stored: the database finds them
// at start, and does not believe what verify cannot check. Files of version 1 have one, with
// which damage makes the database panic.
func openDB(path string) (db *bbolt.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fault.New(fault.Corrupt, "%s is damaged: %v: %s", path, p, cure)
		}
	}()
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
}

// initSchema makes the buckets and the daemon's id of a new file and checks the schema of an old one.
func initSchema(tx *bbolt.Tx) error {
	for _, b := range buckets {
		if _, err := tx.CreateBucketIfNotExists(b); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	switch v := decodeUint(meta.Get(keyVersion)); {
	case v == schemaVersion:
		return nameDaemon(tx)
	case v > schemaVersion:
		return newer(tx.DB().Path(), v)
	}
	if err := meta.Put(keyVersion, encodeUint(schemaVersion)); err != nil {
		return err
	}
	sum, err := sumOf(tx)
	if err != nil {
		return err
	}
	if err := meta.Put(keySum, encodeUint(sum)); err != nil {
		return err
	}
	return nameDaemon(tx)
}

// nameDaemon gives a file its daemon's id, unless it has one.
func nameDaemon(tx *bbolt.Tx) error {
	if tx.Bucket(bucketMeta).Get(keyDaemon) != nil {
		return nil
	}
	return put(tx, bucketMeta, keyDaemon, []byte(rand.Text()))
}

// ErrUnwritable is in the errors of changes that the disk did not take. They are Unavailable: the
// store is as before, or has the change after all, and it may be tried again.
var ErrUnwritable = errors.New("the node's state cannot be written")

// write changes the file as f says, or not at all. After an ErrUnwritable nobody knows which: where the disk fails to sync
// the last page of a transaction, what was written counts.
func (s *Store) write(f func(*bbolt.Tx) error) error {
	if s.disk.Writing != nil {
		s.disk.Writing(s.db.Path(), !s.db.NoSync)
	}
	err := s.disk.fault(false)
	if err == nil {
		if err = s.db.Update(f); err == nil {
			err = s.disk.fault(true)
		}
	}
	if err == nil || fault.Class(err) != nil {
		return err // or what f refuses
	}
	return &writeError{path: s.db.Path(), cause: err}
}

func (d Disk) fault(written bool) error {
	if d.Fault == nil {
		return nil
	}
	return d.Fault(written)
}

// writeError is an ErrUnwritable.
type writeError struct {
	path  string
	cause error
}

func (e *writeError) Error() string {
	return fmt.Sprintf("%s cannot be written: %v: make room on its disk, or mend it", e.path, e.cause)
}

func (e *writeError) Unwrap() []error { return []error{fault.Unavailable, ErrUnwritable, e.cause} }

// SkipSync makes all later changes without fsync: they survive the end of the
// daemon, but a crash of the machine may damage the file. It is for a store that is
// removed with its daemon.
func (s *Store) SkipSync() { s.db.NoSync = true }

// SetDisk has a disk told of all later changes.
func (s *Store) SetDisk(d Disk) { s.disk = d }

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// Identity returns the node's identity.
func (s *Store) Identity() (id Identity, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		id = identity(tx)
		return nil
	})
	return id, err
}

// DaemonID returns the random id that the file was given when it was made, or by the first program that knew of ids. A file
// with another one is that of another data folder. It changes only where the file is on another machine than before: then the
// data folder is a copy, or was moved, and the daemon of the other machine may still run. machine is the machine's id, "" if
// it has none; two that have the same are taken for one. The file has a hash of it, since programs must not show it to others.
// A copy forgets what was wanted. After an ErrUnwritable the id may not be recorded.
func (s *Store) DaemonID(machine string) (id string, copied bool, err error) {
	var before string
	err = s.db.View(func(tx *bbolt.Tx) error {
		m := tx.Bucket(bucketMeta)
		id, before = string(m.Get(keyDaemon)), string(m.Get(keyMachine))
		return nil
	})
	sum := sha256.Sum256([]byte("drover " + machine))
	now := hex.EncodeToString(sum[:16])
	if err != nil || machine == "" || before == now {
		return id, false, err
	}
	if copied = before != ""; copied {
		id = rand.Text()
	}
	err = s.write(func(tx *bbolt.Tx) error {
		if err := errors.Join(put(tx, bucketMeta, keyDaemon, []byte(id)), put(tx, bucketMeta, keyMachine, []byte(now))); err != nil || !copied {
			return err
		}
		return giveUp(tx) // it is wanted of the other machine
	})
	return id, copied, err
}

func identity(tx *bbolt.Tx) Identity {
	m := tx.Bucket(bucketMeta)
	return Identity{
		Cluster:  string(m.Get(keyCluster)),
		Node:     int32(decodeUint(m.Get(keyNode))),
		Epoch:    decodeUint(m.Get(keyEpoch)),
		Term:     decodeUint(m.Get(keyTerm)),
		Revision: decodeUint(m.Get(keyRevision)),

		ClusterEpoch: decodeUint(m.Get(keyClusterEpoch)),
		Restored:     decodeUint(m.Get(keyRestored)) != 0,
	}
}

// Register stores the answer to a registration. Another cluster or a lower term
// is Conflict and changes nothing. A new epoch or node number clears the wanted
// set and its revision, so that the next watch requests a full set. Where the coordinator was
// restored they do not: its epochs and numbers of nodes may be others, and what the node
// runs may be unknown to it (see Apply). After an Apply that could not be written the revision is cleared too.
func (s *Store) Register(r *droverv1.RegisterResponse) (id Identity, err error) {
	refetch := s.refetch.Load()
	err = s.write(func(tx *bbolt.Tx) error {
		id = identity(tx)
		if id.Cluster != "" && id.Cluster != r.GetCluster() {
			return fault.New(fault.Conflict, "the coordinator is of cluster %s, this node belongs to %s: point it at its own coordinator, or remove its data folder to move it", r.GetCluster(), id.Cluster)
		}
		if err := checkTerm(id.Term, r.GetTerm()); err != nil {
			return err
		}
		switch {
		case id.Cluster != "" && id.ClusterEpoch != r.GetClusterEpoch():
			id.Restored, id.Revision = true, 0
			if err := moveRecords(tx, r.GetEpoch()); err != nil {
				return err
			}
		case id.Epoch != r.GetEpoch() || id.Node != r.GetNode():
			id.Revision = 0
			if err := clearBucket(tx, bucketWanted); err != nil {
				return err
			}
		}
		if refetch {
			id.Revision = 0
		}
		id.ClusterEpoch = r.GetClusterEpoch()
		id.Cluster, id.Node, id.Epoch, id.Term = r.GetCluster(), r.GetNode(), r.GetEpoch(), r.GetTerm()
		return putIdentity(tx, id)
	})
	if err == nil && refetch {
		s.refetch.Store(false)
	}
	return id, err
}

// moveRecords moves the records of the present epoch to another one.
func moveRecords(tx *bbolt.Tx, epoch uint64) error {
	present, moved := identity(tx).Epoch, map[string][]byte{}
	err := tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
		r, err := decodeRecord(v)
		if err != nil || r.Epoch != present {
			return err
		}
		r.Epoch = epoch
		moved[string(k)], err = json.Marshal(r)
		return err
	})
	for k, v := range moved {
		err = errors.Join(err, put(tx, bucketRecords, []byte(k), v))
	}
	return err
}

func checkTerm(have, got uint64) error {
	if got < have {
		return fault.New(fault.Conflict, "the answer has term %d, but term %d was seen before: it comes from a replaced coordinator", got, have)
	}
	return nil
}

func putIdentity(tx *bbolt.Tx, id Identity) error {
	restored := uint64(0)
	if id.Restored {
		restored = 1
	}
	return errors.Join(
		put(tx, bucketMeta, keyCluster, []byte(id.Cluster)),
		put(tx, bucketMeta, keyNode, encodeUint(uint64(id.Node))),
		put(tx, bucketMeta, keyEpoch, encodeUint(id.Epoch)),
		put(tx, bucketMeta, keyTerm, encodeUint(id.Term)),
		put(tx, bucketMeta, keyRevision, encodeUint(id.Revision)),
		put(tx, bucketMeta, keyClusterEpoch, encodeUint(id.ClusterEpoch)),
		put(tx, bucketMeta, keyRestored, encodeUint(restored)))
}

// Change is the effect of Apply on the wanted set.
type Change struct {
	Stale   bool // outdated revision: nothing was changed
	Put     map[ID]*droverv1.WantedAttempt
	removed []ID // no longer wanted: removed by a delta, or missing in a full set
}

// Apply stores a full set or a delta together with its revision. A lower term is
// Conflict. A delta that is not newer than the stored revision changes nothing;
// a full set always applies, and the first one after a restore leaves what it does not list
// undecided, until a later set lists it or a delta removes it. A put without spec keeps the stored spec; if there
// is none the error is Invalid, and the caller must watch again from revision 0. After an ErrUnwritable it must register
// again: the set may be stored, and a delta of which it knows nothing would be stale.
// O(set) for a full set, otherwise O(delta).
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

// unlisted returns the attempts that a full set does not list, without those that are undecided,
// which it adds to the set. With restored the attempts that were started and have not ended
// become undecided.
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

// PutRecord stores a record durably. Concurrent calls share a transaction.
func (s *Store) PutRecord(id ID, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.records.commit(func(tx *bbolt.Tx) error { return put(tx, bucketRecords, []byte(id), b) })
}

// DeleteRecord deletes a record; it is not an error if there is none.
func (s *Store) DeleteRecord(id ID) error {
	return s.records.commit(func(tx *bbolt.Tx) error { return remove(tx, bucketRecords, []byte(id)) })
}

// Records returns all records.
func (s *Store) Records() (map[ID]Record, error) {
	all := map[ID]Record{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
			r, err := decodeRecord(v)
			if err != nil {
				return fmt.Errorf("record %s: %w", k, err)
			}
			all[ID(k)] = r
			return nil
		})
	})
	return all, err
}

// decodeRecord decodes a record; nil is the zero Record.
func decodeRecord(b []byte) (r Record, err error) {
	if b == nil {
		return r, nil
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%w: %w", fault.Corrupt, err)
	}
	return r, nil
}

func encodeUint(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func decodeUint(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// GiveUp removes all that was wanted of the node: another daemon has its name, in a later epoch. The next watch requests a full set.
func (s *Store) GiveUp() error { return s.write(giveUp) }

func giveUp(tx *bbolt.Tx) error {
	id := identity(tx)
	id.Revision = 0
	return errors.Join(clearBucket(tx, bucketWanted), putIdentity(tx, id))
}

// ForgetRevision makes the node request a full set at the next watch.
func (s *Store) ForgetRevision() (id Identity, err error) {
	err = s.write(func(tx *bbolt.Tx) error {
		id = identity(tx)
		id.Revision = 0
		return putIdentity(tx, id)
	})
	return id, err
}
