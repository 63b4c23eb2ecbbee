package scheduler

import (
	"encoding/json"
	"fmt"
	"time"
)

// Level is what an attempt holds of its node. See Level.Holds for the table.
type Level uint8

// The levels, from the one that holds most to the one that holds least.
const (
	LevelRunning Level = iota + 1
	LevelFrozen
	LevelSwapped
	LevelCheckpointed
)

// String gives the word used in events and JSON.
func (l Level) String() string {
	switch l {
	case LevelRunning:
		return "running"
	case LevelFrozen:
		return "frozen"
	case LevelSwapped:
		return "swapped"
	case LevelCheckpointed:
		return "checkpointed"
	default:
		return fmt.Sprintf("level(%d)", uint8(l))
	}
}

// Suspended tells whether l is a level at which nothing runs.
func (l Level) Suspended() bool { return l >= LevelFrozen && l <= LevelCheckpointed }

// ParseLevel reads what String prints.
func ParseLevel(s string) (Level, error) {
	for l := LevelRunning; l <= LevelCheckpointed; l++ {
		if l.String() == s {
			return l, nil
		}
	}
	return 0, fmt.Errorf("level %q: use running, frozen, swapped or checkpointed", s)
}

// Held is what an attempt occupies on its node: resources, swap (bytes) and
// space on the disk it is on (bytes).
type Held struct {
	Resources Resources `json:"resources"`
	Swap      int64     `json:"swap,omitempty"`
	Disk      int64     `json:"disk,omitempty"`
}

// Footprint is what an attempt was measured to have when it was suspended:
// memory in use, bytes that went to swap, bytes of its checkpoint image, and
// bytes of its files.
type Footprint struct {
	Memory int64 `json:"memory"`
	Swap   int64 `json:"swap,omitempty"`
	Image  int64 `json:"image,omitempty"`
	Files  int64 `json:"files"`
}

// Holds is the table of levels: what an attempt of this demand and footprint
// occupies at level l.
//
//	level        CPU, I/O  memory                     swap              disk space
//	running      demand    demand                     0                 its quota
//	frozen       0         what it has                0                 its files
//	swapped      0         the rest that did not go   what it has       its files
//	checkpointed 0         0                          0                 image and files
//
// An unknown level holds the whole demand, which is the safe side.
func (l Level) Holds(demand Resources, disk int64, f Footprint) Held {
	switch l {
	case LevelFrozen:
		return Held{Resources: Resources{Memory: f.Memory}, Disk: f.Files}
	case LevelSwapped:
		return Held{Resources: Resources{Memory: max(f.Memory-f.Swap, 0)}, Swap: f.Swap, Disk: f.Files}
	case LevelCheckpointed:
		return Held{Disk: f.Files + f.Image}
	default:
		return Held{Resources: demand, Disk: disk}
	}
}

// LevelSet is a set of levels a node can do.
type LevelSet uint8

// Levels makes a set.
func Levels(ls ...Level) LevelSet {
	var s LevelSet
	for _, l := range ls {
		s |= 1 << l
	}
	return s
}

// AllLevels holds every level.
const AllLevels LevelSet = 1<<LevelRunning | 1<<LevelFrozen | 1<<LevelSwapped | 1<<LevelCheckpointed

// Has tells whether l is in the set.
func (s LevelSet) Has(l Level) bool {
	return l >= LevelRunning && l <= LevelCheckpointed && s&(1<<l) != 0
}

// MarshalJSON writes the names in order.
func (s LevelSet) MarshalJSON() ([]byte, error) {
	names := []string{}
	for l := LevelRunning; l <= LevelCheckpointed; l++ {
		if s.Has(l) {
			names = append(names, l.String())
		}
	}
	return json.Marshal(names)
}

// UnmarshalJSON reads a list of names.
func (s *LevelSet) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return fmt.Errorf("levels: %w", err)
	}
	*s = 0
	for _, n := range names {
		l, err := ParseLevel(n)
		if err != nil {
			return err
		}
		*s |= 1 << l
	}
	return nil
}

// SuspendSpeed is what a node measured about suspending: fixed times and
// bytes per second. A zero rate means that the level takes its fixed time.
type SuspendSpeed struct {
	Freeze          time.Duration `json:"freeze_ns,omitempty"`
	Swap            time.Duration `json:"swap_ns,omitempty"`
	SwapPerS        int64         `json:"swap_bytes_per_s,omitempty"`
	Checkpoint      time.Duration `json:"checkpoint_ns,omitempty"`
	CheckpointPerS  int64         `json:"checkpoint_bytes_per_s,omitempty"`
	Restore         time.Duration `json:"restore_ns,omitempty"`
	RestorePerS     int64         `json:"restore_bytes_per_s,omitempty"`
	TransferPerS    int64         `json:"transfer_bytes_per_s,omitempty"`
	SwapBackPerS    int64         `json:"swap_back_bytes_per_s,omitempty"`
	ThawAfterFreeze time.Duration `json:"thaw_ns,omitempty"`
}

// Suspend is the time to bring an attempt with this much memory (bytes) from
// running to level l.
func (p SuspendSpeed) Suspend(l Level, memory int64) time.Duration {
	switch l {
	case LevelFrozen:
		return p.Freeze
	case LevelSwapped:
		return p.Freeze + p.Swap + perRate(memory, p.SwapPerS)
	case LevelCheckpointed:
		return p.Freeze + p.Checkpoint + perRate(memory, p.CheckpointPerS)
	default:
		return 0
	}
}

// Resume is the time to bring it back from level l to running.
func (p SuspendSpeed) Resume(l Level, memory int64) time.Duration {
	switch l {
	case LevelFrozen:
		return p.ThawAfterFreeze
	case LevelSwapped:
		return p.ThawAfterFreeze + perRate(memory, p.SwapBackPerS)
	case LevelCheckpointed:
		return p.Restore + perRate(memory, p.RestorePerS)
	default:
		return 0
	}
}

func perRate(bytes, perS int64) time.Duration {
	if perS <= 0 || bytes <= 0 {
		return 0
	}
	s := float64(bytes) / float64(perS) * float64(time.Second)
	if s >= float64(1<<62) {
		return 1 << 62
	}
	return time.Duration(s)
}
