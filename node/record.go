package node

import (
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
)

// attemptRecord owns the part of an attempt's state that survives the daemon. Record equals the
// stored record, so that decisions based on it still hold after a restart. Only change modifies it.
// Two fields may be ahead of the store, and are stored with the next change: Epoch, and LevelNote,
// which is only for users.
type attemptRecord struct {
	store.Record
	exists bool // in the store

	id     store.ID
	db     *store.Store
	clock  clock
	bootID string // of this boot
}

// change applies f to the record and stores it. After an error the record is unchanged.
func (r *attemptRecord) change(f func(*store.Record)) error {
	rec := r.Record
	f(&rec)
	if err := r.db.PutRecord(r.id, rec); err != nil {
		return err
	}
	r.Record, r.exists = rec, true
	return nil
}

// remove deletes the record.
func (r *attemptRecord) remove() error {
	if err := r.db.DeleteRecord(r.id); err != nil {
		return err
	}
	r.Record, r.exists = store.Record{}, false
	return nil
}

// isOfEarlierBoot reports whether the machine was rebooted since the attempt started.
func (r *attemptRecord) isOfEarlierBoot() bool { return r.BootID != "" && r.BootID != r.bootID }

// running returns the running time of the attempt, which is ran without the time that it waited for
// maps after its start.
func (r *attemptRecord) running(now, stopped time.Duration) time.Duration {
	if r.Waiting {
		return 0
	}
	return r.ran(now, stopped) - time.Duration(r.WaitedNS)
}

// endWait records that all maps of a waiting reduce task are done.
func (r *attemptRecord) endWait() error {
	ran := r.ran(r.clock.Monotonic(), 0)
	return r.change(func(rec *store.Record) { rec.Waiting, rec.WaitedNS = false, int64(ran) })
}

// ran returns how long the attempt has run unfrozen since its start, on the monotonic clock.
// stopped is when its container ended, 0 if it has not.
func (r *attemptRecord) ran(now, stopped time.Duration) time.Duration {
	ran := time.Duration(r.RanNS)
	if !r.Started || r.StartMono == 0 {
		return ran
	}
	if r.BootID != r.bootID {
		return ran // the machine was rebooted: the time since the container's last start is lost
	}
	if stopped > 0 {
		now = stopped
	}
	return ran + max(0, now-time.Duration(r.StartMono)-time.Duration(r.FrozenNS))
}

// setLevelNote records, for users, why a level was not reached.
func (r *attemptRecord) setLevelNote(format string, args ...any) {
	r.LevelNote = oneLine(fmt.Sprintf(format, args...))
}

// setLevel stores the level that the attempt has reached, with the other changes of
// f, which may be nil, and stops its running-time clock unless it is running.
// stopped is as in ran.
func (r *attemptRecord) setLevel(l droverv1.Level, stopped time.Duration, f func(*store.Record)) error {
	now := r.clock.Monotonic()
	return r.change(func(rec *store.Record) {
		if l == droverv1.Level_LEVEL_RUNNING {
			if rec.StartMono == 0 {
				rec.StartMono, rec.BootID = max(1, int64(now)), r.bootID
			}
			rec.LevelNote = ""
		} else if rec.StartMono != 0 {
			rec.RanNS, rec.StartMono, rec.FrozenNS = int64(r.ran(now, stopped)), 0, 0
		}
		if rec.Level != int32(l) && (rec.Level != 0 || l != droverv1.Level_LEVEL_RUNNING) {
			rec.LevelSinceMS = r.clock.Now().UnixMilli()
		}
		rec.Level = int32(l)
		if f != nil {
			f(rec)
		}
	})
}
