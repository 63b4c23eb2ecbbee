package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// GanttTasks bounds the runs of tasks for which a Gantt chart is drawn.
const GanttTasks = 2000

// Write writes summary.json, jobs.csv and plots of an experiment into dir.
// Rows and plots are those of the first run.
func Write(dir string, sum report.Summary, o *Outcome) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "summary.json"), func(w io.Writer) error { return report.WriteJSON(w, sum) }); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "jobs.csv"), func(w io.Writer) error { return report.WriteJobs(w, &o.Config, o.Result) }); err != nil {
		return err
	}
	if err := save(dir, "utilisation", func() (*plot.Plot, error) { return report.Utilisation(o.Result) }); err != nil {
		return err
	}
	if err := save(dir, "responses", func() (*plot.Plot, error) {
		return report.Responses([]string{sum.Scheduler}, []*engine.Result{o.Result})
	}); err != nil {
		return err
	}
	if n := len(o.Result.Runs); n > 0 && n < GanttTasks {
		return save(dir, "gantt", func() (*plot.Plot, error) { return report.Gantt(o.Result, len(o.Config.Nodes)) })
	}
	return nil
}

func save(dir, name string, draw func() (*plot.Plot, error)) error {
	p, err := draw()
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	return report.Save(p, filepath.Join(dir, name))
}

// WriteFile writes a file through a buffer.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	return errors.Join(write(b), b.Flush(), f.Close())
}
