package node

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/pastlogs"
	"github.com/drover-run/drover/node/requests"
	"github.com/drover-run/drover/node/store"
)

// jobLogs provides the logs of attempts on this node, including those that have left it.
type jobLogs struct {
	attempts *attemptTable
	past     *pastlogs.Store
}

var _ requests.LogSource = jobLogs{}

// LogsOf implements requests.LogSource.
func (l jobLogs) LogsOf(job uint64) []requests.JobLog {
	own := map[store.ID]folder{} // "" for an attempt that has left
	prefix := strconv.FormatUint(job, 10) + "."
	l.attempts.each(func(a *attempt) {
		if strings.HasPrefix(string(a.id), prefix) {
			own[a.id] = a.dir
		}
	})
	for _, id := range l.past.Attempts() {
		if strings.HasPrefix(id, prefix) {
			own[store.ID(id)] = ""
		}
	}
	var out []requests.JobLog
	for id, dir := range own {
		k, err := store.ParseID(string(id))
		if err != nil {
			continue // no attempt's
		}
		for _, stream := range []string{"stdout", "stderr"} {
			out = append(out, requests.JobLog{Key: k, Stream: stream, Copy: func(w io.Writer) error { return l.copyLog(w, id, dir, stream) }})
		}
	}
	slices.SortFunc(out, func(x, y requests.JobLog) int {
		return cmp.Or(compareKeys(x.Key, y.Key), cmp.Compare(y.Stream, x.Stream)) // stdout first
	})
	return out
}

func compareKeys(x, y *droverv1.AttemptKey) int {
	return cmp.Or(cmp.Compare(x.GetStage(), y.GetStage()), cmp.Compare(x.GetTask(), y.GetTask()), cmp.Compare(x.GetAttempt(), y.GetAttempt()), cmp.Compare(x.GetRun(), y.GetRun()))
}

// copyLog writes what exists of a stream.
func (l jobLogs) copyLog(w io.Writer, id store.ID, own folder, stream string) error {
	files, _, err := l.open(id, own, stream)
	if err != nil {
		return err
	}
	defer files.close()
	return files.copy(func(b []byte, _ int64) error {
		_, err := w.Write(b)
		return err
	})
}

// open opens the logs of an attempt: the kept copy if the attempt has left, otherwise those in its
// own folder, which is "" for an attempt that is not here. files is empty if there are no logs.
func (l jobLogs) open(id store.ID, own folder, stream string) (files *logFiles, left bool, err error) {
	if dir := l.past.Folder(id.String()); dir != "" {
		files, err = openLogs(folder(dir), stream)
		return files, true, err
	}
	files = &logFiles{stream: stream}
	if own != "" {
		if files, err = openLogs(own, stream); err != nil {
			return nil, false, err
		}
	}
	if l.past.Folder(id.String()) == "" {
		return files, false, nil
	}
	files.close() // the attempt left meanwhile, so some files may have been missing: the copy was made before
	return l.open(id, own, stream)
}
