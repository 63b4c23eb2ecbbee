package reuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

// A process of a cancelled Exec ends when nobody waits for it any more: the task runs on.
func TestEndOfACancelledExec(t *testing.T) {
	d := &Driver{}
	c := &container{current: newTask(record{}), command: 7, extra: map[int]chan int{}, replies: make(chan taskinit.Reply, 1)}
	if !d.heard(c, taskinit.Reply{Event: taskinit.Exited, PID: 99}) {
		t.Error("the connection would be closed, and the task killed")
	}
}

// Answers that nobody asked for are not taken for those to later requests.
func TestUnaskedAnswers(t *testing.T) {
	d := &Driver{}
	c := &container{extra: map[int]chan int{}, replies: make(chan taskinit.Reply, 1)}
	r := taskinit.Reply{Event: taskinit.Started, PID: 5}
	if !d.heard(c, r) || d.heard(c, r) {
		t.Error("a second answer before anybody reads the first: the connection must be closed")
	}
}

// A process that starts after its Exec was given up is killed: process 1 was moved out of the task's cgroup by then. The
// connection may have been idle for long.
func TestLateStartOfAnExec(t *testing.T) {
	d := &Driver{}
	conn, of1 := connected(t)
	c := &container{conn: conn, current: newTask(record{}), command: 7, doomed: true, extra: map[int]chan int{}, replies: make(chan taskinit.Reply, 1)}
	if err := errors.Join(conn.SetWriteDeadline(time.Unix(1, 0)), of1.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	if !d.heard(c, taskinit.Reply{Event: taskinit.Started, PID: 99}) {
		t.Error("the connection would be closed, and the task lost")
	}
	length := make([]byte, 4)
	var q taskinit.Request
	_, err := io.ReadFull(of1, length)
	if err == nil {
		err = taskinit.Decode(of1, length, &q)
	}
	if err != nil || q.Kill != 99 {
		t.Errorf("process 1 is asked for %+v, %v", q, err)
	}
	d.wg.Wait()
}

// An Exec whose task is frozen before process 1 answers is given up, and the answer is never taken for another.
func TestExecThatMeetsAFreeze(t *testing.T) {
	d := newOffline(t, t.TempDir(), hanging(t))
	box := newShared(t, d, sharedPrefix+"a")
	box.home = "/home"
	for _, group := range []string{"/home", "/g"} {
		if err := os.Mkdir(d.cfg.group(group), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.cfg.group("/g"), "cgroup.freeze"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := d.request(t.Context(), box, runtime.Spec{ID: "t", Cgroup: "/g"}, taskinit.Request{Args: []string{"x"}, Extra: true})
	if fault.Class(err) != fault.Conflict || !box.isDoomed() {
		t.Errorf("%v, doomed %v", err, box.isDoomed())
	}
}

func TestSpecsThatShare(t *testing.T) {
	base := runtime.Spec{ID: "a", Reuse: "s", Image: "i", UID: 1, GID: 1, Mounts: []runtime.Mount{{Source: "/1", Target: "/task"}, {Source: "/h", Target: "/h", ReadOnly: true}}}
	for name, c := range map[string]struct {
		change func(*runtime.Spec)
		same   bool
	}{
		"another task":            {func(s *runtime.Spec) { s.ID, s.Args, s.Env, s.Hostname = "b", []string{"x"}, []string{"A=1"}, "h" }, true},
		"its own folder":          {func(s *runtime.Spec) { s.Mounts[0].Source = "/2" }, true},
		"another read-only mount": {func(s *runtime.Spec) { s.Mounts[1].Source = "/i" }, false},
		"one mount more":          {func(s *runtime.Spec) { s.Mounts = s.Mounts[:1] }, false},
		"a folder read-only":      {func(s *runtime.Spec) { s.Mounts[0].ReadOnly = true }, false},
		"another key":             {func(s *runtime.Spec) { s.Reuse = "t" }, false},
		"another image":           {func(s *runtime.Spec) { s.Image = "j" }, false},
		"another root":            {func(s *runtime.Spec) { s.Image, s.Rootfs = "", "/i" }, false},
		"another user":            {func(s *runtime.Spec) { s.UID = 2 }, false},
		"another group":           {func(s *runtime.Spec) { s.GID = 2 }, false},
	} {
		other := base
		other.Mounts = append([]runtime.Mount{}, base.Mounts...)
		c.change(&other)
		if same := keyOf(base) == keyOf(other); same != c.same {
			t.Errorf("%s: share %v, want %v", name, same, c.same)
		}
	}
}

// newOffline returns a driver around a fake engine, for what happens before a task starts and
// after a daemon has died.
func newOffline(t *testing.T, dir string, e *fake.Engine) *Driver {
	t.Helper()
	d, err := New(e.Driver(), Config{Dir: dir, Mount: t.TempDir(), Cgroup: "/reused"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestCreateRefuses(t *testing.T) {
	e := fake.New(nil, nil)
	t.Cleanup(e.Close)
	d := newOffline(t, t.TempDir(), e)
	good := runtime.Spec{ID: "a", Reuse: "s", Args: []string{"x"}, Cgroup: "/g"}
	for name, mounts := range map[string][]runtime.Mount{
		"a mount in a mount":  {{Source: "/a", Target: "/task"}, {Source: "/b", Target: "/task/in"}},
		"a mount on shm":      {{Source: "/a", Target: "/dev/shm"}},
		"a mount on the init": {{Source: "/a", Target: initTarget}},
		"a mount around shm":  {{Source: "/a", Target: "/dev"}},
	} {
		s := good
		s.Mounts = mounts
		if err := d.Create(t.Context(), s); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want fault.Invalid", name, err)
		}
	}
	s := good
	s.Cgroup = ""
	if err := d.Create(t.Context(), s); !errors.Is(err, fault.Invalid) {
		t.Errorf("without a cgroup: %v, want fault.Invalid", err)
	}
}

// TestTasksOfADeadDaemon begins with the records that a daemon left which was killed.
func TestTasksOfADeadDaemon(t *testing.T) {
	e := fake.New(nil, map[string]fake.Program{
		"four": func(context.Context, *fake.Process) int { return 4 },
		"hang": func(ctx context.Context, _ *fake.Process) int { <-ctx.Done(); return 0 },
	})
	t.Cleanup(e.Close)
	engine, dir, ctx := e.Driver(), t.TempDir(), t.Context()
	open := func(id, program string) { // a container of the dead daemon, with its process 1
		t.Helper()
		if err := engine.Create(ctx, runtime.Spec{ID: id, Args: []string{program}, Labels: map[string]string{labelReused: "yes"}}); err != nil {
			t.Fatal(err)
		}
		if err := engine.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	open(sharedPrefix+"ended", "four")
	open(sharedPrefix+"runs", "hang")
	open(sharedPrefix+"idle", "hang")
	if _, err := engine.Wait(ctx, sharedPrefix+"ended"); err != nil {
		t.Fatal(err)
	}
	cfg := newOffline(t, dir, e).cfg
	at := time.Now()
	for _, r := range []record{
		{Spec: runtime.Spec{ID: "ended"}, Container: sharedPrefix + "ended", Sent: true, Started: at},
		{Spec: runtime.Spec{ID: "unsure"}, Container: sharedPrefix + "ended", Started: at}, // killed before the command was known to run
		{Spec: runtime.Spec{ID: "lost"}, Container: sharedPrefix + "lost", Sent: true, Started: at},
		{Spec: runtime.Spec{ID: "runs"}, Container: sharedPrefix + "runs", Sent: true, Started: at, PID: 77},
		{Spec: runtime.Spec{ID: "before"}, Container: sharedPrefix + "runs", Sent: true, Started: at, Ended: true, Code: 0, Exited: at},
		{Spec: runtime.Spec{ID: "created"}},
	} {
		if err := newTask(r).save(cfg); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.tasksDir(), "half"+recordSuffix+".new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newOffline(t, dir, e)
	if err := d.CloseIdle(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if all, err := engine.List(ctx); err != nil || len(all) != 2 {
		t.Errorf("the engine has %v, %v, want what tasks need", all, err)
	}
	type seen struct {
		phase runtime.Phase
		code  int
		pid   int
	}
	want := map[string]seen{
		"before": {runtime.PhaseStopped, 0, 0}, "created": {runtime.PhaseCreated, 0, 0}, "ended": {runtime.PhaseStopped, 4, 0},
		"lost": {runtime.PhaseStopped, runtime.ExitLost, 0}, "runs": {runtime.PhaseRunning, 0, 77}, "unsure": {runtime.PhaseStopped, runtime.ExitLost, 0},
	}
	all, err := d.List(ctx)
	if err != nil || len(all) != len(want) {
		t.Fatalf("%v, %v", all, err)
	}
	for _, s := range all {
		if got := (seen{s.Phase, s.ExitCode, s.PID}); got != want[s.ID] {
			t.Errorf("%s is listed as %v, want %v", s.ID, got, want[s.ID])
		}
	}
	for _, id := range []string{"ended", "unsure", "lost", "before"} {
		if st, err := d.Wait(ctx, id); err != nil || st.ExitCode != want[id].code {
			t.Errorf("Wait for %s: %v, %v, want %d", id, st, err, want[id].code)
		}
	}
	if _, err := d.Exec(ctx, "runs", runtime.ExecSpec{Args: []string{"x"}}); !errors.Is(err, fault.Conflict) {
		t.Errorf("Exec: %v, want fault.Conflict", err)
	}
	for _, id := range []string{"before", "ended", "lost", "unsure", "created"} {
		if err := d.Delete(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if s, err := d.List(ctx); err != nil || len(s) != 1 || s[0].Phase != runtime.PhaseRunning {
		t.Errorf("what ended before in the container of a running task was deleted: %v, %v", s, err)
	}
	if err := d.Delete(ctx, "runs"); err != nil {
		t.Error(err)
	}
	if all, err := engine.List(ctx); err != nil || len(all) > 0 {
		t.Errorf("the engine has %v, %v", all, err)
	}
	if left, err := os.ReadDir(cfg.tasksDir()); err != nil || len(left) > 0 {
		t.Errorf("records %v, %v", left, err)
	}
}

// newShared returns a container of a driver that the engine has, and whose process 1 is connected.
func newShared(t *testing.T, d *Driver, id string) *container {
	t.Helper()
	ctx := t.Context()
	if err := d.Engine.Create(ctx, runtime.Spec{ID: id, Args: []string{"hang"}, Labels: map[string]string{labelReused: "yes"}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Engine.Start(ctx, id); err != nil {
		t.Fatal(err)
	}
	conn, _ := connected(t)
	c := &container{id: id, conn: conn, opened: time.Now(), extra: map[int]chan int{}, replies: make(chan taskinit.Reply, 1)}
	d.containers[id] = c
	return c
}

// connected returns the ends of a connection to process 1.
func connected(t *testing.T) (conn, of1 *net.UnixConn) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all [2]*net.UnixConn
	for i, fd := range ends {
		f := os.NewFile(uintptr(fd), "an end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		all[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return all[0], all[1]
}

func hanging(t *testing.T) *fake.Engine {
	e := fake.New(nil, map[string]fake.Program{"hang": func(ctx context.Context, _ *fake.Process) int { <-ctx.Done(); return 0 }})
	t.Cleanup(e.Close)
	return e
}

// A container whose process 1 dies while no task uses it is deleted with the idle ones.
func TestIdleContainersThatDieAreDeleted(t *testing.T) {
	d := newOffline(t, t.TempDir(), hanging(t))
	c := newShared(t, d, sharedPrefix+"a")
	c.idle = time.Now()
	d.lost(c)
	if err := d.CloseIdle(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	all, err := d.Engine.List(t.Context())
	if _, left := d.shared(); err != nil || len(all) > 0 || left > 0 {
		t.Errorf("the engine has %v, the driver %d, %v", all, left, err)
	}
}

// What a start or a removal that was cut short has left of a container, which the engine does not have, is removed too;
// what is still made, and what is not of this package, stays.
func TestRestsWithoutAContainerAreRemoved(t *testing.T) {
	d := newOffline(t, t.TempDir(), hanging(t))
	groups := d.cfg.group(d.cfg.Cgroup)
	path := func(in, name string) string { return filepath.Join(in, name) }
	gone := []string{path(d.cfg.socketsDir(), sharedPrefix+"socket"), path(groups, sharedPrefix+"group")}
	stays := []string{path(d.cfg.socketsDir(), sharedPrefix+"new"), path(groups, sharedPrefix+"new"), path(groups, "other")}
	if err := d.CloseIdle(t.Context(), 0); err != nil { // before there is a cgroup
		t.Fatal(err)
	}
	for _, dir := range append(slices.Clone(gone), stays...) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	done := d.setOpening(sharedPrefix + "new")
	if err := d.CloseIdle(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	done()
	for _, dir := range gone {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	for _, dir := range stays {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// A start that failed, and could not be undone as the engine was away, is no start: the next one undoes it first,
// and so does the end of the task.
func TestStartThatCouldNotBeUndone(t *testing.T) {
	e := hanging(t)
	d := newOffline(t, t.TempDir(), e)
	c := newShared(t, d, sharedPrefix+"a")
	task := newTask(record{Spec: runtime.Spec{ID: "t", Reuse: "s", Args: []string{"x"}, Cgroup: "/g"}, Container: c.id, Started: time.Now()})
	task.c, task.failed, d.tasks["t"] = c, c, task
	e.Down(true)
	if err := d.Start(t.Context(), "t"); err == nil {
		t.Error("it counts as started")
	}
	e.Down(false)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := d.Delete(ctx, "t"); err != nil {
		t.Error(err)
	}
	if all, err := d.Engine.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("the engine has %v, %v", all, err)
	}
}

// The end of a task is the first that process 1 told, though it has died by the time it is looked at.
func TestEndBeforeTheFirstProcessDies(t *testing.T) {
	for range 50 { // two ends were in a race
		d := newOffline(t, t.TempDir(), hanging(t))
		c := newShared(t, d, sharedPrefix+"a")
		task := newTask(record{Spec: runtime.Spec{ID: "t", Reuse: "s", Args: []string{"x"}, Cgroup: "/g"}, Container: c.id, Sent: true, Started: time.Now()})
		task.c, d.tasks["t"], c.current, c.command = c, task, task, 7
		c.turn.Lock()
		d.heard(c, taskinit.Reply{Event: taskinit.Exited, PID: 7, Code: 3})
		d.heard(c, taskinit.Reply{Event: taskinit.Exited, PID: 7, Code: 4})
		d.lost(c)
		c.turn.Unlock()
		<-task.over
		if s := task.status(); s.ExitCode != 3 {
			t.Fatalf("it ended as %+v", s)
		}
		d.wg.Wait()
	}
}

// A task whose end cannot be stored has ended.
func TestEndThatIsNotStored(t *testing.T) {
	task := newTask(record{Spec: runtime.Spec{ID: "t"}, Container: "c", Sent: true})
	task.end(Config{Dir: filepath.Join(t.TempDir(), "none")}, 3, time.Now())
	select {
	case <-task.done:
	default:
		t.Error("who waits for it waits for ever")
	}
	if s := task.status(); s.Phase != runtime.PhaseStopped || s.ExitCode != 3 {
		t.Errorf("its status is %+v", s)
	}
}

func TestMountsThatDoNotReadBack(t *testing.T) {
	line := func(target, options string) string {
		return "30 20 0:1 / " + target + " " + options + " - tmpfs x rw\n"
	}
	good := line("/task", "rw,nosuid,nodev")
	for name, c := range map[string]struct{ text, want string }{
		"one mount":      {good, ""},
		"none":           {line("/other", "rw,nosuid,nodev"), "0 mounts"},
		"one over it":    {good + good, "2 mounts"},
		"devices":        {line("/task", "rw,nosuid"), "options rw,nosuid"},
		"set-user-ID":    {line("/task", "rw,nodev"), "options rw,nodev"},
		"a prefix of it": {good + line("/task2", "rw"), ""},
	} {
		err := checkMounted(c.text, []string{"/task"})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The engine follows a link of the image, and mounts elsewhere: that is a mistake of the image.
func TestImagesWithLinks(t *testing.T) {
	own := mountTargets(runtime.Spec{Mounts: []runtime.Mount{{Target: "/task"}, {Target: "/.drover", ReadOnly: true}}})
	line := func(target string) string { return "30 20 0:1 / " + target + " rw - tmpfs x rw\n" }
	all := line("/task") + line(initTarget) + line(socketTarget) + line(shmPath)
	for name, c := range map[string]struct{ text, want string }{
		"none":                     {all, ""},
		"at the task's folder":     {strings.Replace(all, line("/task"), line("/usr/task"), 1), "/task"},
		"at the first process":     {strings.Replace(all, line(initTarget), line("/x"), 1), initTarget},
		"at its socket":            {strings.Replace(all, line(socketTarget), line("/x"), 1), socketTarget},
		"at /dev":                  {strings.Replace(all, line(shmPath), line("/x/shm"), 1), shmPath},
		"at a name that it begins": {strings.Replace(all, line("/task"), line("/task2"), 1), "/task"},
	} {
		err := checkNoLinks("a", c.text, own)
		if (err == nil) != (c.want == "") || err != nil && (fault.Class(err) != fault.Invalid || !strings.Contains(err.Error(), "a link at "+c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestConnectionsThatAreLeft(t *testing.T) {
	rest := "UDP: inuse 3 mem 1\nFRAG: inuse 0 memory 0\n"
	for name, c := range map[string]struct {
		text string
		left bool
	}{
		"none":               {"sockets: used 15\nTCP: inuse 0 orphan 7 tw 0 alloc 42 mem 68\n" + rest, false}, // only inuse and tw are of the namespace
		"one that waits":     {"sockets: used 15\nTCP: inuse 0 orphan 0 tw 1 alloc 42 mem 68\n" + rest, true},
		"one that is closed": {"sockets: used 15\nTCP: inuse 1 orphan 1 tw 0 alloc 42 mem 68\n" + rest, true},
		"none of version 6":  {"TCP6: inuse 0\nUDP6: inuse 2\n", false},
		"one of version 6":   {"TCP6: inuse 1\nUDP6: inuse 2\n", true},
	} {
		if left := leftTCP(c.text); (left != "") != c.left {
			t.Errorf("%s: %q", name, left)
		}
	}
	if err := checkConnections(os.Getpid()); err != nil {
		t.Errorf("the host's network counts: %v", err)
	}
}

// A command that process 1 could not start at the moment is no mistake of its job.
func TestRefusedStarts(t *testing.T) {
	for name, c := range map[string]struct {
		permanent bool
		want      error
	}{"for a moment": {false, fault.Unavailable}, "for good": {true, fault.Invalid}} {
		d := newOffline(t, t.TempDir(), hanging(t))
		box := newShared(t, d, sharedPrefix+"a")
		box.home = "/home"
		for _, group := range []string{"/home", "/g"} {
			if err := os.Mkdir(d.cfg.group(group), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		box.replies <- taskinit.Reply{Event: taskinit.Refused, Error: "text file busy", Permanent: c.permanent}
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.request(t.Context(), box, runtime.Spec{ID: "t", Cgroup: "/g"}, taskinit.Request{Args: []string{"x"}}, null, null, null)
		null.Close()
		if fault.Class(err) != c.want || !strings.Contains(err.Error(), "text file busy") {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Only a process that is known to be another than process 1 is refused: one that has died is gone, and its container
// is made again.
func TestFirstProcessThatDiesBeforeItIsAccepted(t *testing.T) {
	for name, c := range map[string]struct {
		dies bool
		want error
	}{"it dies": {true, fault.Unavailable}, "a stranger": {false, fault.Denied}} {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		if c.dies {
			if out, err := exec.Command(os.Args[0], connectMarker, l.Addr().String()).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		} else {
			conn, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		box := &container{id: "a", home: "/no/such/group"}
		if err := (&Driver{}).accept(t.Context(), l, box); fault.Class(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if box.conn != nil {
			box.conn.Close()
		}
		l.Close()
	}
}

// connect is a process that connects to a socket, and dies.
func connect(socket string) int {
	if _, err := net.Dial("unix", socket); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
