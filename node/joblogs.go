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

// jobLogs has the logs of attempts on this node, also of those that have left it.
type jobLogs struct {
	attempts *attemptTable
	past     *pastlogs.Store
}

var _ requests.LogSource = jobLogs{}

// LogsOf implements requests.LogSource.
func (l jobLogs) LogsOf(job uint64) []requests.JobLog {
	dirs := map[store.ID]folder{}
	prefix := strconv.FormatUint(job, 10) + "."
	l.attempts.each(func(a *attempt) {
		if strings.HasPrefix(string(a.id), prefix) {
			dirs[a.id] = a.dir
		}
	})
	for _, id := range l.past.Attempts() {
		if strings.HasPrefix(id, prefix) {
			dirs[store.ID(id)] = folder(l.past.Folder(id))
		}
	}
	var out []requests.JobLog
	for id, dir := range dirs {
		k, err := store.ParseID(string(id))
		if err != nil || dir == "" {
			continue // no attempt's, or it went meanwhile
		}
		for _, stream := range []string{"stdout", "stderr"} {
			out = append(out, requests.JobLog{Key: k, Stream: stream, Copy: func(w io.Writer) error { return copyLog(w, dir, stream) }})
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

// copyLog writes what there is of a stream.
func copyLog(w io.Writer, dir folder, stream string) error {
	files, err := openLogs(dir, stream)
	if err != nil {
		return err
	}
	defer files.close()
	return files.copy(func(b []byte, _ int64) error {
		_, err := w.Write(b)
		return err
	})
}
