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

	ClusterEpoch uint64 // the coordinator's: another one means that it was restored
	// Restored: no full set has come since the coordinator was restored. What the next one
	// does not list is undecided, and until it is applied the node has no lease.
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

// GiveUp removes all that was wanted of the node: another daemon has its name, in a later epoch. The next watch requests a full set.
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

// nameDaemon gives a file its daemon's id, unless it has one.
func nameDaemon(tx *bbolt.Tx) error {
	if tx.Bucket(bucketMeta).Get(keyDaemon) != nil {
		return nil
	}
	return put(tx, bucketMeta, keyDaemon, []byte(rand.Text()))
}
