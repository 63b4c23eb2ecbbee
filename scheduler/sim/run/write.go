package run

import (
	"bufio"
	"cmp"
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

// WriteResults writes summary.json, jobs.csv, tasks.csv, timeseries.csv and the plots of a setup
// into dir. Rows and plots are those of the first simulation. Files of an earlier simulation that
// this one does not write are removed.
func WriteResults(dir string, sum report.Summary, o *Outcome) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := removeOthers(dir, o); err != nil {
		return err
	}
	if err := o.commitTaskLog(); err != nil {
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
	if hasGantt(o) {
		return savePlot(dir, "gantt", func() (*plot.Plot, error) { return report.PlotGantt(o.Result, len(o.Config.Nodes)) })
	}
	return nil
}

// hasGantt reports whether there is a Gantt chart of all attempts.
func hasGantt(o *Outcome) bool {
	n := len(o.Result.TaskExecutions)
	return n > 0 && n < MaxGanttTasks
}

// removeOthers removes the files of another simulation in dir that WriteResults does not write.
// WriteJSONLines makes its tables again.
func removeOthers(dir string, o *Outcome) error {
	var names []string
	for _, name := range tables {
		names = append(names, name+".jsonl")
	}
	if o.taskLog == nil {
		names = append(names, "tasks.csv")
	}
	if len(o.Result.Series.Tenants) == 0 {
		names = append(names, "timeseries.csv")
	}
	if !hasGantt(o) {
		names = append(names, "gantt.svg", "gantt.png")
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
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

// WriteFile writes a file through a buffer. The file appears when it is complete, since half a file
// would be taken for a result; if write fails, an earlier file stays.
func WriteFile(path string, write func(io.Writer) error) error {
	f, err := createFile(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	if err = write(b); err == nil {
		err = b.Flush()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.discard())
	}
	return f.commit()
}

// newFile is a file that is written under another name until it is complete.
type newFile struct {
	*os.File
	path string // final path
	part string // present path; "" if that is the final path: a device or a pipe is neither replaced nor removed
}

// createFile creates a file that gets its name by commit.
func createFile(path string) (*newFile, error) {
	f := &newFile{path: path}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		f.path = to // a link stays a link
	}
	if st, err := os.Stat(f.path); err != nil || st.Mode().IsRegular() {
		f.part = f.path + ".part"
	}
	var err error
	if f.File, err = os.OpenFile(cmp.Or(f.part, f.path), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err != nil {
		var cause *fs.PathError
		if errors.As(err, &cause) {
			cause.Path = path // the path that the user gave
		}
		return nil, err
	}
	return f, nil
}

// commit closes the complete file and moves it to its path.
func (f *newFile) commit() error {
	if err := f.Close(); err != nil {
		return errors.Join(err, f.remove())
	}
	if f.part == "" {
		return nil
	}
	return os.Rename(f.part, f.path)
}

// discard closes the file and removes it.
func (f *newFile) discard() error { return errors.Join(f.Close(), f.remove()) }

func (f *newFile) remove() error {
	if f.part == "" {
		return nil
	}
	return os.Remove(f.part)
}
