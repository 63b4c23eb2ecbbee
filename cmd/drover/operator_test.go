package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

// operatorBed is a coordinator in a process of its own that a test restarts on
// several folders, with a node in the test's process.
type operatorBed struct {
	t      *testing.T
	dir    string
	socket string
	coord  *exec.Cmd
	log    *lockedBuffer
}

func newOperatorBed(t *testing.T) *operatorBed {
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &operatorBed{t: t, dir: dir, socket: filepath.Join(dir, "s")}
	for name, command := range map[string]string{"quick": `["true"]`, "gate": `["sh", "-c", "until [ -e ` + dir + `/open ]; do sleep 0.02; done"]`} {
		text := "job \"" + name + "\" {\n  stage \"main\" { command = " + command + " }\n}\n"
		if err := os.WriteFile(filepath.Join(dir, name+".hcl"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *operatorBed) start(data string) {
	b.t.Helper()
	b.coord, b.log = startDaemon(b.t, "coordinator", "-id", "m1", "-data", filepath.Join(b.dir, data), "-socket", b.socket)
}

// kill ends the coordinator as a power failure would.
func (b *operatorBed) kill() {
	b.t.Helper()
	if err := b.coord.Process.Signal(syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	_ = b.coord.Wait() // it was killed
}

func (b *operatorBed) try(args ...string) (string, error) {
	return droverOutput(b.t, append([]string{"-address", "unix://" + b.socket}, args...)...)
}

func (b *operatorBed) run(args ...string) string {
	b.t.Helper()
	out, err := b.try(args...)
	if err != nil {
		b.t.Fatalf("drover %s: %v\n%s\n%s", strings.Join(args, " "), err, out, b.log)
	}
	return out
}

func (b *operatorBed) submit(file, name string) {
	b.t.Helper()
	b.run("job", "run", "-detach", "-name", name, filepath.Join(b.dir, file+".hcl"))
}

func (b *operatorBed) waitForText(want string, args ...string) {
	b.t.Helper()
	last := ""
	waitFor(b.t, strings.Join(args, " ")+" shows "+want, func() bool {
		last, _ = b.try(args...) // an error only means another try
		return strings.Contains(last, want)
	}, func() string { return last + "\n" + b.log.String() })
}

// TestASnapshotTouchesNoOtherFile: neither what another command is about to write nor a file that came to be meanwhile.
func TestASnapshotTouchesNoOtherFile(t *testing.T) {
	dir := t.TempDir()
	archive, other := filepath.Join(dir, "a.tar.gz"), filepath.Join(dir, "a.tar.gz.part")
	files := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, path, text string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	write(other, "other")
	f := &fakeCoordinator{} // which refuses to save
	if _, err := f.run(t, t.Context(), "operator", "snapshot", "save", archive); exitCode(err) != exitRefused {
		t.Errorf("refused: %v", err)
	}
	want("the other's file", other, "other")
	if got := files(); !slices.Equal(got, []string{"a.tar.gz.part"}) {
		t.Errorf("after a refusal there is %q", got)
	}
	write(archive, "meanwhile")
	if err := nameArchive(other, archive); !errors.Is(err, fault.Exists) {
		t.Errorf("a file that came to be meanwhile: %v", err)
	}
	want("it", archive, "meanwhile")
	if err := errors.Join(os.Remove(archive), nameArchive(other, archive)); err != nil {
		t.Fatal(err)
	}
	want("the archive", archive, "other")
}

// TestRestoreAfterRestarts restores an archive after the coordinator was
// restarted three times since, so that nodes have seen higher terms than the
// archive's. The node connects; a task that ran all the time runs on; jobs from
// before and after run.
func TestRestoreAfterRestarts(t *testing.T) {
	b := newOperatorBed(t)
	b.start("first")
	startProcessNode(t, filepath.Join(b.dir, "dev"), b.socket)
	b.submit("quick", "ended")
	b.waitForText("succeeded", "job", "status", "ended")
	b.submit("gate", "long")
	b.waitForText(`"running": 1`, "job", "status", "-json", "long")
	archive := filepath.Join(b.dir, "saved.tar.gz")
	if out := b.run("operator", "snapshot", "save", archive); !strings.Contains(out, "2, 1 of them live") {
		t.Errorf("save printed:\n%s", out)
	}
	if _, err := b.try("operator", "snapshot", "save", archive); err == nil {
		t.Error("an archive was overwritten")
	}
	if out := b.run("operator", "server", "list"); !strings.Contains(out, "leader") {
		t.Errorf("server list printed:\n%s", out)
	}
	for range 3 {
		b.kill()
		b.start("first")
	}
	b.submit("gate", "after")
	b.waitForText(`"running": 1`, "job", "status", "-json", "after")
	if _, err := b.try("operator", "repair", "-data", filepath.Join(b.dir, "first"), "-accept-loss"); err == nil || !strings.Contains(err.Error(), "open in another process") {
		t.Errorf("repair below a running coordinator: %v", err)
	}
	b.kill()

	if out := b.run("operator", "snapshot", "inspect", archive); !strings.Contains(out, "right, of ") {
		t.Errorf("inspect printed:\n%s", out)
	}
	if _, err := b.try("operator", "snapshot", "restore", "-data", filepath.Join(b.dir, "first"), archive); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("restore over a folder in use: %v", err)
	}
	settings := filepath.Join(b.dir, "coordinator.hcl")
	writeFile(t, settings, "id = \"m1\"\ndata = \""+filepath.Join(b.dir, "elsewhere")+"\"\n")
	second := filepath.Join(b.dir, "second")
	const user = 4242 // root restores into the folder of the coordinator's user
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Mkdir(second, 0o700), os.Chown(second, user, user)); err != nil {
			t.Fatal(err)
		}
	}
	b.run("operator", "snapshot", "restore", "-config", settings, "-data", second, archive)
	if os.Geteuid() == 0 {
		for _, path := range []string{second, filepath.Join(second, "blobs"), filepath.Join(second, "raft", "raft-log.db")} {
			if st, err := os.Stat(path); err != nil || st.Sys().(*syscall.Stat_t).Uid != user {
				t.Errorf("%s: %v, %+v: want it to be that user's", path, err, st)
			}
		}
	}
	b.start("second")
	b.submit("quick", "new")
	b.waitForText("succeeded", "job", "status", "new")
	if out, err := b.try("job", "status", "after"); err == nil {
		t.Errorf("a job from after the archive is known:\n%s", out)
	}
	if out := b.run("task", "status", "long", "main/0"); !strings.Contains(out, "running") || strings.Contains(out, "attempt   2") {
		t.Errorf("the task from before did not run on:\n%s", out)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "open"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.waitForText("succeeded", "job", "status", "long")
	b.waitForText("cluster.restored", "events")
	if out := b.run("job", "list", "-all"); !strings.Contains(out, "1000003 ") {
		t.Errorf("the job after the restore has a number that may have been given before:\n%s", out)
	}
	b.kill()
	b.start("second") // it starts again from what it wrote
	b.waitForText("succeeded", "job", "status", "long")
}

// TestRepairKeepsWhatIsWhole cuts the log's newest entries off by damage: repair
// says what is lost, does nothing without consent, and then the coordinator
// starts with what is left.
func TestRepairKeepsWhatIsWhole(t *testing.T) {
	b := newOperatorBed(t)
	b.start("c")
	for _, name := range []string{"one", "two", "damaged"} {
		b.submit("quick", name)
	}
	b.kill()
	path := filepath.Join(b.dir, "c", "raft", "raft-log.db")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range raw { // every copy of the last job's entry: pages that were given up hold some, too
		if strings.HasPrefix(string(raw[i:min(len(raw), i+9)]), `"damaged"`) {
			raw[i+1] ^= 1
			at = i
		}
	}
	if at == 0 {
		t.Fatal("the last job's entry is not in the log")
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(b.dir, "c")
	out, err := b.try("operator", "repair", "-data", data)
	if err == nil || !strings.Contains(out, "is lost: entries ") || !strings.Contains(out, "checksum") {
		t.Fatalf("repair without consent: %v\n%s", err, out)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(raw) {
		t.Fatalf("repair without consent changed the log (%v)", err)
	}
	unreadable := filepath.Join(data, "history", "history-000009.jsonl") // a folder, as a file on a bad block, gives no line
	if err := os.Mkdir(unreadable, 0o700); err != nil {
		t.Fatal(err)
	}
	if out := b.run("operator", "repair", "-data", data, "-accept-loss"); !strings.Contains(out, "cannot be read: ") {
		t.Errorf("the repair does not name what it cannot read:\n%s", out)
	}
	if err := os.Remove(unreadable); err != nil {
		t.Fatal(err)
	}
	if out := b.run("operator", "repair", "-data", data); !strings.Contains(out, "is not damaged") {
		t.Errorf("after the repair:\n%s", out)
	}
	b.start("c")
	list := b.run("job", "list")
	if !strings.Contains(list, "one") || !strings.Contains(list, "two") || strings.Contains(list, "damaged") {
		t.Errorf("jobs after the repair:\n%s", list)
	}
	b.waitForText("cluster.restored", "events")
}

// Repair names damaged lines of the JSON history and of the audit log, and leaves them:
// no job needs them, and a start says so too.
func TestRepairNamesDamagedLines(t *testing.T) {
	b := newOperatorBed(t)
	b.start("c")
	startProcessNode(t, filepath.Join(b.dir, "dev"), b.socket)
	b.run("job", "run", filepath.Join(b.dir, "quick.hcl"))
	b.run("job", "run", filepath.Join(b.dir, "quick.hcl"))
	data := filepath.Join(b.dir, "c")
	lines := filepath.Join(data, "history", "history-000001.jsonl")
	waitFor(t, "the jobs are in the history", func() bool {
		text, err := os.ReadFile(lines)
		return err == nil && strings.Count(string(text), "\n") == 2
	}, b.log.String)
	b.kill()
	for _, file := range []string{lines, filepath.Join(data, "audit.jsonl")} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text[40] ^= 1
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := b.run("operator", "repair", "-data", data)
	for _, want := range []string{"damaged: line 1 of history-000001.jsonl", "damaged: line 1 of audit.jsonl", "no job needs it", "is not damaged"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	b.start("c")
	b.waitForText("succeeded", "job", "list", "-all")
	if log := b.log.String(); !strings.Contains(log, "history-000001.jsonl") {
		t.Errorf("the start says nothing of it:\n%s", log)
	}
}
