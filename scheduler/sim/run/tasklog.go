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

// simulateLogged simulates c and writes the attempts to a file if c is the simulation to log. Rows are
// written while it runs, so that millions of attempts need no memory. WriteResults gives the file the name
// of TaskLog. A failed simulation has no file, unless it is stuck: then its attempts are worth reading.
// then worth reading.
func (s *Setup) simulateLogged(c *engine.Config) (*engine.Result, *newFile, error) {
	if s.TaskLog == "" || c.Seed != s.TaskLogSeed {
		r, err := engine.Simulate(*c)
		return r, nil, err
	}
	if err := os.MkdirAll(filepath.Dir(s.TaskLog), 0o755); err != nil {
		return nil, nil, err
	}
	f, err := createFile(s.TaskLog)
	if err != nil {
		return nil, nil, err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	log := report.NewTaskLog(b, c)
	c.OnAttempt, c.TenantSeries, c.WaitedTimes = log.Add, true, s.WaitedTimes
	r, err := engine.Simulate(*c)
	c.OnAttempt = nil
	written := cmp.Or(log.Flush(), b.Flush())
	var stuck *engine.StuckError
	if written != nil || (err != nil && !errors.As(err, &stuck)) {
		return r, nil, errors.Join(err, written, f.discard())
	}
	return r, f, err
}

// TaskLog returns the file with the attempts until the results are written or discarded.
func (o *Outcome) TaskLog() string { return cmp.Or(o.taskLog.part, o.taskLog.path) }

// commitTaskLog gives the file of the attempts, if any, its name.
func (o *Outcome) commitTaskLog() error {
	f := o.taskLog
	if o.taskLog = nil; f == nil {
		return nil
	}
	return f.commit()
}

// DiscardTaskLogs removes the attempts of simulations whose results were not written.
func DiscardTaskLogs(outs []*Outcome) error {
	var errs []error
	for _, o := range outs {
		if o != nil && o.taskLog != nil {
			errs = append(errs, o.taskLog.discard())
			o.taskLog = nil
		}
	}
	return errors.Join(errs...)
}
