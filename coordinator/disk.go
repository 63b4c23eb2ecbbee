package coordinator

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// defaultReserve is the reserve of a large disk, in bytes; of a small one it is
// a twentieth.
const defaultReserve = 256 << 20

// diskSpace returns the bytes free for this user, and all bytes, of dir's disk.
func diskSpace(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// diskGuard keeps a part of the log's disk free for the log.
type diskGuard struct {
	configured int64                                 // bytes; 0: by the size of the disk, negative: none
	space      func() (free, total int64, err error) // bytes
}

// reserve returns the bytes that stay free for the log, 0 for none.
func (g *diskGuard) reserve() int64 {
	if g.configured != 0 {
		return max(0, g.configured)
	}
	_, total, err := g.space()
	if err != nil {
		return 0
	}
	return min(defaultReserve, total/20)
}

// requireSpace returns an error if size more bytes would leave less than the reserve free: the log
// must still have space for decisions and for the ends of tasks.
func (g *diskGuard) requireSpace(size int64) error {
	reserve := g.reserve()
	free, _, err := g.space()
	if err != nil || reserve == 0 || free-max(0, size) >= reserve {
		return nil // a disk that cannot be asked does not stop work
	}
	return fault.New(fault.Exhausted, "the coordinator's disk is nearly full: %s are free and %s are kept for its log: an operator has to make room in its data folder", jobspec.FormatSize(free), jobspec.FormatSize(reserve))
}

// clockWarningFor is how long a step of the clock stays a warning.
const clockWarningFor = 7 * 24 * time.Hour

// addHealth adds the coordinator's own state to its status.
func (c *core) addHealth(res *droverv1.StatusResponse) {
	res.DataReserve = c.disk.reserve()
	free, _, err := c.cfg.diskSpace()
	if err != nil {
		res.Warnings = append(res.Warnings, err.Error())
	}
	res.DataFree = free
	if err := c.disk.requireSpace(0); err != nil {
		res.Warnings = append(res.Warnings, err.Error())
	}
	if err := c.recorder.health(); err != nil {
		res.Warnings = append(res.Warnings, "the history is not written until the coordinator starts again: "+err.Error())
	}
	if d := c.past.Repaired(); d != nil {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the history was damaged when the coordinator started: %s; %d jobs are kept, the damaged file is %s", d.What, d.Jobs, d.Aside))
	}
	if ahead := c.logAhead(); ahead > facts.ClockTolerance {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the log's time is %s ahead of the coordinator's clock: check that the time is synchronised", ahead.Round(time.Second)))
	}
	if why := c.secretWarning(); why != "" {
		res.Warnings = append(res.Warnings, why)
	}
	if at := time.UnixMilli(res.ClockSteppedAtMs); res.ClockSteppedMs > 0 && c.now().Sub(at) < clockWarningFor {
		res.Warnings = append(res.Warnings, fmt.Sprintf("the coordinator's clock had been ahead by %s until %s: times shown from before may be wrong",
			(time.Duration(res.ClockSteppedMs)*time.Millisecond).Round(time.Second), at.UTC().Format("2006-01-02 15:04:05Z")))
	}
}
