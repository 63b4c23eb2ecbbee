package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"go.etcd.io/bbolt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Identity is the node's identity at its coordinator.
type Identity struct {
	Cluster  string
	Node     int32
	Epoch    uint64
	Term     uint64
	Revision uint64 // of the wanted set; 0 = none yet

	ClusterEpoch uint64 // of the coordinator; a change means that the coordinator was restored
	// Restored is set from a restore of the coordinator until the next full set has been applied.
	// Attempts that this set does not list are undecided. While it is set, the node has no lease.
	Restored bool
}

// Identity returns the node's identity.
func (s *Store) Identity() (id Identity, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		id = identity(tx)
		return nil
	})
	return id, err
}

// DaemonID returns the random id of the file, created with the file or by the first program that
// knew ids. Another id means another data folder. The id changes only if the file is on another
// machine than before: the data folder was copied or moved, and the daemon of the other machine may
// still run. A copy also loses its wanted set. machine is the machine's id, "" if it has none;
// machines with the same id count as one. The file contains only a hash of it, since programs must
// not show it to others. After an ErrUnwritable the id may not be stored.
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

// Register stores the response to a registration. Another cluster or a lower term is Conflict and
// changes nothing. A new epoch or node number clears the wanted set and its revision, so that the
// next watch requests a full set. After a restore of the coordinator they do not: its epochs and
// node numbers may differ, and it may not know what the node runs (see Apply). After an Apply that
// could not be written, the revision is cleared too.
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

// GiveUp removes the whole wanted set, because another daemon has the node's name in a later epoch.
// The next watch requests a full set.
func (s *Store) GiveUp() error { return s.write(giveUp) }

// ForgetRevision makes the node request a full set at the next watch.
func (s *Store) ForgetRevision() (id Identity, err error) {
	err = s.write(func(tx *bbolt.Tx) error {
		id = identity(tx)
		id.Revision = 0
		return putIdentity(tx, id)
	})
	return id, err
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

func checkTerm(have, got uint64) error {
	if got < have {
		return fault.New(fault.Conflict, "the answer has term %d, but term %d was seen before: it comes from a replaced coordinator", got, have)
	}
	return nil
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

func giveUp(tx *bbolt.Tx) error {
	id := identity(tx)
	id.Revision = 0
	return errors.Join(clearBucket(tx, bucketWanted), putIdentity(tx, id))
}

// nameDaemon stores a random daemon id in the file, unless it has one.
func nameDaemon(tx *bbolt.Tx) error {
	if tx.Bucket(bucketMeta).Get(keyDaemon) != nil {
		return nil
	}
	return put(tx, bucketMeta, keyDaemon, []byte(rand.Text()))
}
