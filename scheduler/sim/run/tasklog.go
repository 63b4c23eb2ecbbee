package run

import (
	"bufio"
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// simulateLogged simulates c and writes the attempts to TaskLog if c is the simulation to log. Rows
// are written while it runs, so that millions of attempts need no memory. A simulation that fails
// leaves the file that was there, unless it is stuck: what ran is then worth reading.
func (s *Setup) simulateLogged(c *engine.Config) (*engine.Result, error) {
	if s.TaskLog == "" || c.Seed != s.TaskLogSeed {
		return engine.Simulate(*c)
	}
	if err := os.MkdirAll(filepath.Dir(s.TaskLog), 0o755); err != nil {
		return nil, err
	}
	f, err := createFile(s.TaskLog)
	if err != nil {
		return nil, err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	log := report.NewTaskLog(b, c)
	c.OnAttempt, c.TenantSeries, c.WaitedTimes = log.Add, true, s.WaitedTimes
	r, err := engine.Simulate(*c)
	c.OnAttempt = nil
	written := cmp.Or(log.Flush(), b.Flush())
	var stuck *engine.StuckError
	if written != nil || (err != nil && !errors.As(err, &stuck)) {
		return r, errors.Join(err, written, f.discard())
	}
	return r, errors.Join(err, f.commit())
}
