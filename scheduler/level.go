package scheduler

import (
	"time"

	"github.com/drover-run/drover/internal/enum"
)

// Level says how much of its node an attempt occupies. See Level.Occupancy for the table.
type Level uint8

// The levels, from the one that occupies most to the one that occupies least.
const (
	LevelRunning Level = iota + 1
	LevelFrozen
	LevelSwapped
	LevelCheckpointed
)

// String returns the word used in events and JSON.
func (l Level) String() string {
	return enum.Name("level", l, []string{LevelRunning: "running", LevelFrozen: "frozen", LevelSwapped: "swapped", LevelCheckpointed: "checkpointed"})
}

// Suspended reports whether l is a level at which the attempt does not run.
func (l Level) Suspended() bool { return l >= LevelFrozen && l <= LevelCheckpointed }

// Occupancy is what an attempt occupies on its node: resources, swap (bytes) and space on its disk (bytes).
type Occupancy struct {
	Resources Resources `json:"resources"`
	Swap      int64     `json:"swap,omitempty"`
	Disk      int64     `json:"disk,omitempty"`
}

// Footprint is what was measured when an attempt was suspended: memory in use, bytes in swap,
// size of the checkpoint image and of its files, all in bytes.
type Footprint struct {
	Memory int64 `json:"memory"`
	Swap   int64 `json:"swap,omitempty"`
	Image  int64 `json:"image,omitempty"`
	Files  int64 `json:"files"`
}

// Occupancy returns what an attempt of this demand and footprint occupies at level l:
//
//	level        CPU, I/O  memory                     swap              disk space
//	running      demand    demand                     0                 its quota
//	frozen       0         memory in use              memory in swap    its files
//	swapped      0         memory not swapped out     swapped memory    its files
//	checkpointed 0         0                          0                 image and files
//
// The memory of a frozen attempt does not include its bytes in swap, which a swap-out leaves that ended for
// want of swap; that of a swapped one does. For an unknown level it returns the whole demand, the safe side.
func (l Level) Occupancy(demand Resources, disk int64, f Footprint) Occupancy {
	switch l {
	case LevelFrozen:
		return Occupancy{Resources: Resources{Memory: f.Memory}, Swap: f.Swap, Disk: f.Files}
	case LevelSwapped:
		return Occupancy{Resources: Resources{Memory: max(f.Memory-f.Swap, 0)}, Swap: f.Swap, Disk: f.Files}
	case LevelCheckpointed:
		return Occupancy{Disk: f.Files + f.Image}
	default:
		return Occupancy{Resources: demand, Disk: disk}
	}
}

// LevelSet is a set of levels, one bit each.
type LevelSet uint8

// Levels returns the set of the given levels.
func Levels(ls ...Level) LevelSet {
	var s LevelSet
	for _, l := range ls {
		s |= 1 << l
	}
	return s
}

// AllLevels contains every level.
const AllLevels LevelSet = 1<<LevelRunning | 1<<LevelFrozen | 1<<LevelSwapped | 1<<LevelCheckpointed

// Has reports whether l is in the set.
func (s LevelSet) Has(l Level) bool {
	return l >= LevelRunning && l <= LevelCheckpointed && s&(1<<l) != 0
}

// FreesMemory reports whether the set has a level at which a task frees memory.
func (s LevelSet) FreesMemory() bool { return s.Has(LevelSwapped) || s.Has(LevelCheckpointed) }

// SuspendSpeed holds a node's measured times and rates (bytes per second) of suspending and
// resuming. With a zero rate a level takes its fixed time only.
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

// Suspend returns the time to bring an attempt with this much memory (bytes) from running to level l.
func (p SuspendSpeed) Suspend(l Level, memory int64) time.Duration {
	switch l {
	case LevelFrozen:
		return p.Freeze
	case LevelSwapped:
		return p.Freeze + p.Swap + TimeAtRate(memory, p.SwapPerS)
	case LevelCheckpointed:
		return p.Freeze + p.Checkpoint + TimeAtRate(memory, p.CheckpointPerS)
	default:
		return 0
	}
}

// Resume returns the time to bring an attempt from level l back to running.
func (p SuspendSpeed) Resume(l Level, memory int64) time.Duration {
	switch l {
	case LevelFrozen:
		return p.ThawAfterFreeze
	case LevelSwapped:
		return p.ThawAfterFreeze + TimeAtRate(memory, p.SwapBackPerS)
	case LevelCheckpointed:
		return p.Restore + TimeAtRate(memory, p.RestorePerS)
	default:
		return 0
	}
}

// TimeAtRate returns the time to process some bytes at perS bytes per second, 0 without a rate, at most 2^62 ns.
func TimeAtRate(bytes, perS int64) time.Duration {
	if perS <= 0 || bytes <= 0 {
		return 0
	}
	s := float64(bytes) / float64(perS) * float64(time.Second)
	if s >= float64(1<<62) {
		return 1 << 62
	}
	return time.Duration(s)
}
