package store

import (
	"encoding/binary"
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

// Record is the node's own state of an attempt, in addition to the wanted state.
type Record struct {
	Epoch        uint64 `json:"epoch"`                    // in which the record was made; attempts of an older epoch are killed and not reported
	Started      bool   `json:"started,omitempty"`        // its container was started or about to be
	StartedMS    int64  `json:"started_ms,omitempty"`     // Unix time
	BootID       string `json:"boot_id,omitempty"`        // of the machine at the start
	StartMono    int64  `json:"start_mono,omitempty"`     // nanoseconds of the monotonic clock at the start
	FrozenNS     int64  `json:"frozen_ns,omitempty"`      // time since StartMono spent frozen; always 0 today
	RanNS        int64  `json:"ran_ns,omitempty"`         // unfrozen running time before StartMono; StartMono is 0 while suspended
	Waiting      bool   `json:"waiting,omitempty"`        // a reduce task started before all its maps were done, and they are still not done
	WaitedNS     int64  `json:"waited_ns,omitempty"`      // running time that it waited for maps, which does not count as the task's
	Level        int32  `json:"level,omitempty"`          // last level reached, numbered as in the protocol; 0 is running
	LevelSinceMS int64  `json:"level_since_ms,omitempty"` // Unix time at which Level was reached
	DumpNumber   int32  `json:"dump_number,omitempty"`    // of the last dump begun; each has its own folder
	Dumping      bool   `json:"dumping,omitempty"`        // the dump DumpNumber may have ended the container
	Dumped       bool   `json:"dumped,omitempty"`         // the dump DumpNumber is complete
	Stopped      bool   `json:"stopped,omitempty"`        // restored, and its processes are still stopped: see runtime.StoppedRestorer
	DumpBytes    int64  `json:"dump_bytes,omitempty"`     // size of the dump
	HarnessPath  string `json:"harness_path,omitempty"`   // the harness that the container was created with
	Usage        *Usage `json:"usage,omitempty"`          // in all, when it was last checkpointed
	LevelNote    string `json:"level_note,omitempty"`     // why a level was not reached
	End          []byte `json:"end,omitempty"`            // protobuf SeenAttempt: how the attempt ended
	PriorUsage
}

// Usage is the measured usage of an attempt.
type Usage struct {
	CPUMS       int64 `json:"cpu_ms,omitempty"` // CPU time
	MemoryPeak  int64 `json:"memory_peak,omitempty"`
	ReadBytes   int64 `json:"read_bytes,omitempty"`
	WriteBytes  int64 `json:"write_bytes,omitempty"`
	ThrottledMS int64 `json:"throttled_ms,omitempty"`
}

// PriorUsage is the usage that the counters of the attempt's cgroup lack: on earlier nodes, and in
// cgroups removed by a reboot.
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
	refetch atomic.Bool // an Apply could not be written: the caller may lack a part of the stored revision
}

// Disk observes the transactions of a file, for simulations of a power loss and of a failing disk.
// Its functions may be nil.
type Disk struct {
	// Writing is called before each transaction, with its file and whether the transaction is
	// synced before it is acknowledged.
	Writing func(path string, synced bool)
	// Fault is called before and after each transaction. Its error is that of the disk: with
	// written false nothing was written, with true everything was.
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

// openDB opens a verified file. The list of free pages is not stored: bbolt finds free pages at the
// start, instead of trusting a list that verify cannot check. Files of version 1 have such a list,
// and damage in it makes bbolt panic.
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

// ErrUnwritable is in the errors of changes that the disk refused. They are Unavailable. The store
// may have the change or not, and the change may be tried again.
var ErrUnwritable = errors.New("the node's state cannot be written")

// write applies f to the file in one transaction. After an ErrUnwritable it is unknown whether the
// change was applied: if the disk fails to sync the last page of a transaction, the change may
// still be stored.
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

// writeError is an ErrUnwritable with its cause.
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

// SetDisk sets the observer of all later transactions.
func (s *Store) SetDisk(d Disk) { s.disk = d }

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

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
