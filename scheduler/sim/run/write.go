package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"

	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// MaxGanttTasks limits the task executions for which a Gantt chart is drawn.
const MaxGanttTasks = 2000

// WriteResults writes summary.json, jobs.csv, timeseries.csv and the plots of a setup into dir. Rows
// and plots are those of the first simulation.
func WriteResults(dir string, sum report.Summary, o *Outcome) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "summary.json"), func(w io.Writer) error { return report.WriteJSON(w, sum) }); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "jobs.csv"), func(w io.Writer) error { return report.WriteJobs(w, &o.Config, o.Result) }); err != nil {
		return err
	}
	if len(o.Result.Series.Tenants) > 0 {
		if err := WriteFile(filepath.Join(dir, "timeseries.csv"), func(w io.Writer) error { return report.WriteTimeSeries(w, &o.Config, o.Result) }); err != nil {
			return err
		}
	}
	if err := savePlot(dir, "utilisation", func() (*plot.Plot, error) { return report.PlotUtilisation(o.Result) }); err != nil {
		return err
	}
	if err := savePlot(dir, "responses", func() (*plot.Plot, error) {
		return report.PlotResponses([]string{sum.Scheduler}, []*engine.Result{o.Result})
	}); err != nil {
		return err
	}
	if n := len(o.Result.TaskExecutions); n > 0 && n < MaxGanttTasks {
		return savePlot(dir, "gantt", func() (*plot.Plot, error) { return report.PlotGantt(o.Result, len(o.Config.Nodes)) })
	}
	return nil
}

// tables are the tables of a setup, without their extension.
var tables = []string{"jobs", "tasks", "timeseries"}

// WriteJSONLines writes the tables in dir as JSON lines, beside their CSV files. Tables that the
// simulation did not write are left out.
func WriteJSONLines(dir string) error {
	for _, name := range tables {
		in, err := os.Open(filepath.Join(dir, name+".csv"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = WriteFile(filepath.Join(dir, name+".jsonl"), func(w io.Writer) error { return report.WriteJSONLines(w, in) })
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
	}
	return nil
}

func savePlot(dir, name string, draw func() (*plot.Plot, error)) error {
	p, err := draw()
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	return report.SavePlot(p, filepath.Join(dir, name))
}

// WriteFile writes a file through a buffer and removes it if that fails: half a file would be taken
// for a result.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	if err := errors.Join(write(b), b.Flush(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}
