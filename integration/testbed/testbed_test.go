package testbed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTestbedFileRoundTrip(t *testing.T) {
	f := &File{Dir: "/d", Control: "/d/control", PID: 7, Host: "10.77.0.1", Emulated: true,
		Nodes: []NodeInfo{{Name: "n1", IP: "10.77.0.11", Agent: "10.77.0.11:99", Storage: "10.77.0.21", Rack: "/r1"}},
		HDFS: &HDFSInfo{NameNode: "10.77.0.10:8020", DataNodes: []DataNodeInfo{{IP: "10.77.0.21", Rack: "/r1"}},
			BlockBytes: 1 << 20, DeadAfterMS: 14000},
		Images: map[string]string{"busybox": "/i"}, Books: []string{"/b"}}
	path := filepath.Join(t.TempDir(), "testbed.json")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvFile, path)
	b, err := FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*f, b.File); d != "" {
		t.Error(d)
	}
	if len(b.Nodes) != 1 || b.Nodes[0].number != 1 || b.HDFS == nil {
		t.Errorf("nodes %v, HDFS %v", b.Nodes, b.HDFS)
	}
}

func TestOutsideATestbedTheErrorNamesTheCommand(t *testing.T) {
	t.Setenv(EnvFile, "")
	if _, err := FromEnv(); !errors.Is(err, ErrNoTestbed) {
		t.Errorf("error %v", err)
	}
}

func TestUnreadableTestbedFile(t *testing.T) {
	tests := map[string]string{
		"not JSON":                "{",
		"of another version":      `{"version": 99}`,
		"without any version":     `{}`,
		"with a field of no sort": `{"version": 1, "nodes": 5}`,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "testbed.json")
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v does not name the file", err)
			}
		})
	}
}

func TestWaitForNamesConditionAndLastReason(t *testing.T) {
	err := WaitFor(context.Background(), 50*time.Millisecond, "the moon", func(context.Context) error {
		return errors.New("still clouds")
	})
	if err == nil || !strings.Contains(err.Error(), "the moon") || !strings.Contains(err.Error(), "still clouds") {
		t.Errorf("error %v", err)
	}
	looks := 0
	err = WaitFor(context.Background(), time.Minute, "three looks", func(context.Context) error {
		if looks++; looks < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || looks != 3 {
		t.Errorf("%d looks, %v", looks, err)
	}
}

func TestPausesFollowLooks(t *testing.T) {
	for look, want := range map[time.Duration]time.Duration{
		0:                      shortestPause,
		time.Millisecond:       shortestPause,
		50 * time.Millisecond:  200 * time.Millisecond,
		250 * time.Millisecond: longestPause,
		time.Minute:            longestPause,
	} {
		if got := pauseAfter(look); got != want {
			t.Errorf("a pause of %v after a look of %v, want %v", got, look, want)
		}
	}
}

func TestEndedTestbedIsReported(t *testing.T) {
	f := &File{Control: filepath.Join(t.TempDir(), "gone"), HDFS: &HDFSInfo{}, Nodes: []NodeInfo{{Name: "n1"}}}
	path := filepath.Join(t.TempDir(), "testbed.json")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.HDFS.StopDataNode(context.Background(), 1); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error %v", err)
	}
	if _, err := b.Nodes[0].Exec(context.Background(), "true"); err == nil || !strings.Contains(err.Error(), "n1") {
		t.Errorf("error %v", err)
	}
}
