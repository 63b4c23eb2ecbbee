package requests

import (
	"errors"
	"io"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/internal/fault"
)

// listedLogs is a LogSource whose logs are all of one job.
type listedLogs []JobLog

func (l listedLogs) LogsOf(uint64) []JobLog { return l }

func logOf(stage, task int32, stream, text string) JobLog {
	return JobLog{Key: &droverv1.AttemptKey{Job: 7, Stage: stage, Task: task, Attempt: 1, Run: 1}, Stream: stream,
		Copy: func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}}
}

const gatheredFile = "/logs/wc-7/n1.log"

func gatherRequest() *droverv1.GatherLogsRequest {
	return &droverv1.GatherLogsRequest{Job: 7, Path: "hdfs://" + gatheredFile, Stages: []string{"map", "reduce"}}
}

func gatheringServer(t *testing.T, fs hdfs.FS, logs ...JobLog) *Server {
	d := NewServer(singleFS{fs}, listedLogs(logs), func() {}, func(string, error) {})
	t.Cleanup(d.Wait)
	return d
}

func TestGatheredLogsHaveHeadings(t *testing.T) {
	fs := fake.New(fake.Options{})
	unreadable := logOf(1, 0, "stdout", "")
	unreadable.Copy = func(io.Writer) error { return errors.New("input/output error") }
	d := gatheringServer(t, fs, logOf(0, 0, "stdout", "read 3 lines\n"), logOf(0, 1, "stderr", "no newline"), logOf(0, 2, "stdout", ""), unreadable)
	if err := d.gatherLogs(t.Context(), gatherRequest(), "u"); err != nil {
		t.Fatal(err)
	}
	got, err := hdfs.ReadFile(t.Context(), fs, gatheredFile, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	const want = `==> map/0.1.1 stdout <==
read 3 lines
==> map/1.1.1 stderr <==
no newline
==> reduce/0.1.1 stdout <==
==> it could not be read: input/output error <==
`
	if string(got) != want {
		t.Errorf("the file is\n%s\nwant\n%s", got, want)
	}
}

func TestWithoutLogsThereIsNoFile(t *testing.T) {
	fs := fake.New(fake.Options{})
	if err := gatheringServer(t, fs).gatherLogs(t.Context(), gatherRequest(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(t.Context(), gatheredFile); !errors.Is(err, hdfs.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

// Gathering that fails at any call and is repeated has the same result as one that
// does not fail; a part of the logs is never visible under their name.
func TestGatherLogsBreaksAnywhere(t *testing.T) {
	for _, op := range []fake.Op{fake.OpMkdir, fake.OpStat, fake.OpRename, fake.OpCreate, fake.OpCommit} {
		for n := 1; ; n++ {
			fs := fake.New(fake.Options{})
			fs.FailNth(op, n, hdfs.ErrUnavailable)
			d := gatheringServer(t, fs, logOf(0, 0, "stdout", "a\n"))
			err := d.gatherLogs(t.Context(), gatherRequest(), "u")
			if err == nil {
				if n == 1 {
					t.Errorf("%s is never called", op)
				}
				break
			}
			if _, err := fs.Stat(t.Context(), gatheredFile); err == nil && op != fake.OpRename {
				t.Errorf("%s number %d failed, and the file is there", op, n)
			}
			for range 2 { // and once more after the end
				if err := d.gatherLogs(t.Context(), gatherRequest(), "u"); err != nil {
					t.Fatalf("%s number %d failed, then the repetition: %v", op, n, err)
				}
			}
			files, err := fs.List(t.Context(), "/logs/wc-7")
			if err != nil || len(files) != 1 || files[0].LengthBytes != int64(len("==> map/0.1.1 stdout <==\na\n")) {
				t.Errorf("%s number %d failed: the folder has %+v, %v", op, n, files, err)
			}
		}
	}
}

func TestGatheredLogsAreBounded(t *testing.T) {
	var out strings.Builder
	w := &boundedLog{to: &out, left: 5}
	for _, s := range []string{"abc", "defg", "h"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if w.endLine(); out.String() != "abcde" || !w.cut {
		t.Errorf("%q, cut %v; want the first 5 bytes and a mark", out.String(), w.cut)
	}
}

func TestGatheringInAForbiddenFolderIsDenied(t *testing.T) {
	fs := fake.New(fake.Options{})
	fs.FailNth(fake.OpMkdir, 1, hdfs.ErrPermission)
	err := gatheringServer(t, fs, logOf(0, 0, "stdout", "a\n")).gatherLogs(t.Context(), gatherRequest(), "mallory")
	if !errors.Is(err, fault.Denied) || !strings.Contains(err.Error(), "mallory") {
		t.Errorf("%v: want a refusal that names the user", err)
	}
}
