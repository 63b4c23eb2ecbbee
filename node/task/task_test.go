package task

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNext(t *testing.T) {
	run := Wanted{Goal: GoalRun, Grace: 10 * time.Second}
	with := func(w Wanted, f func(*Wanted)) Wanted { f(&w); return w }
	fetching := with(run, func(w *Wanted) { w.Fetch = true })
	uploading := with(run, func(w *Wanted) { w.Upload = true })
	limited := with(run, func(w *Wanted) { w.TimeLimit = time.Minute })
	to := func(g Goal) Wanted { return with(run, func(w *Wanted) { w.Goal = g }) }

	none := Seen{Container: ContainerNone, Fetch: WorkIdle, Upload: WorkIdle}
	seen := func(base Seen, f func(*Seen)) Seen { f(&base); return base }
	prepared := seen(none, func(s *Seen) {
		s.Recorded, s.Folder, s.Image, s.Files, s.Cgroup, s.Scratch = true, true, true, true, true, true
	})
	in := func(base Seen, c Container) Seen { return seen(base, func(s *Seen) { s.Container = c }) }
	running := seen(in(prepared, ContainerRunning), func(s *Seen) { s.Started = true })
	stopped := in(running, ContainerStopped)
	passed := seen(stopped, func(s *Seen) { s.Passed = true })
	frozen := seen(running, func(s *Seen) { s.Frozen = true })
	dump := seen(in(running, ContainerNone), func(s *Seen) { s.Dumping, s.Dumped = true, true })
	at := func(l Level) Wanted { return with(run, func(w *Wanted) { w.Level = l }) }
	moving := with(run, func(w *Wanted) { w.Resume = true })
	held := with(at(LevelFrozen), func(w *Wanted) { w.Hold = true })
	ended := seen(stopped, func(s *Seen) { s.Ended = true })

	for name, c := range map[string]struct {
		w    Wanted
		s    Seen
		want Step
	}{
		"a new attempt gets its folder first":           {run, none, Step{Do: MakeFolder}},
		"a folder without its record is recorded again": {run, seen(prepared, func(s *Seen) { s.Recorded = false }), Step{Do: MakeFolder}},
		"then its image":  {run, seen(prepared, func(s *Seen) { s.Image, s.Files, s.Cgroup = false, false, false }), Step{Do: GetImage}},
		"then its cgroup": {run, seen(prepared, func(s *Seen) { s.Files, s.Cgroup = false, false }), Step{Do: MakeCgroup}},
		"then its files":  {run, seen(prepared, func(s *Seen) { s.Files = false }), Step{Do: GetFiles}},
		"input is on its way before the container is":    {fetching, prepared, Step{Do: StartFetch}},
		"a group has no input":                           {run, prepared, Step{Do: CreateContainer}},
		"what is created is started":                     {run, in(prepared, ContainerCreated), Step{Do: Start}},
		"a running task runs":                            {run, running, Step{Do: Wait}},
		"a running task is looked at when its time ends": {limited, seen(running, func(s *Seen) { s.Running = 20 * time.Second }), Step{Do: Wait, Again: 40 * time.Second}},
		"a restarted daemon fetches on":                  {fetching, running, Step{Do: StartFetch}},
		"a restarted daemon asks for no files":           {run, seen(running, func(s *Seen) { s.Files, s.Image = false, false }), Step{Do: Wait}},
		"a stopped container is judged":                  {run, stopped, Step{Do: Judge}},
		"good work without an upload is the end":         {run, passed, Step{Do: End}},
		"good work is uploaded":                          {uploading, passed, Step{Do: StartUpload}},
		"an upload takes its time":                       {uploading, seen(passed, func(s *Seen) { s.Upload = WorkBusy }), Step{Do: Wait}},
		"an upload that is done is the end":              {uploading, seen(passed, func(s *Seen) { s.Upload = WorkDone }), Step{Do: End}},
		"an upload that failed is the end":               {uploading, seen(passed, func(s *Seen) { s.Upload = WorkFailed }), Step{Do: End}},
		"a container that vanished is the end":           {run, in(running, ContainerNone), Step{Do: End}},
		"an engine that is down ends nothing":            {run, in(running, ContainerUnknown), Step{Do: Wait, Again: time.Second}},
		"over its time limit: TERM":                      {limited, seen(running, func(s *Seen) { s.Running = time.Minute }), Step{Do: Terminate}},
		"then the grace": {limited, seen(running, func(s *Seen) { s.Running, s.Terminate, s.SinceTerm = time.Minute, true, 4*time.Second }),
			Step{Do: Wait, Again: 6 * time.Second}},
		"then KILL":                                      {limited, seen(running, func(s *Seen) { s.Running, s.Terminate, s.SinceTerm = time.Minute, true, 10*time.Second }), Step{Do: Kill}},
		"stop: TERM first":                               {to(GoalStop), running, Step{Do: Terminate}},
		"stop before the start is the end":               {to(GoalStop), in(prepared, ContainerCreated), Step{Do: End}},
		"stop while input comes stops the helper":        {to(GoalStop), seen(prepared, func(s *Seen) { s.Fetch = WorkBusy }), Step{Do: StopHelpers}},
		"a fault before the start is the end":            {run, seen(none, func(s *Seen) { s.Fault = true }), Step{Do: End}},
		"a fault of a running task ends it":              {run, seen(running, func(s *Seen) { s.Fault = true }), Step{Do: Terminate}},
		"an ended attempt loses its container":           {run, ended, Step{Do: DeleteContainer}},
		"and its scratch files":                          {run, in(ended, ContainerNone), Step{Do: Trim}},
		"and then rests":                                 {to(GoalKeep), seen(in(ended, ContainerNone), func(s *Seen) { s.Scratch = false }), Step{Do: Rest}},
		"keep of what never ended ends it":               {to(GoalKeep), running, Step{Do: Terminate}},
		"gone: the container first":                      {to(GoalGone), running, Step{Do: DeleteContainer}},
		"gone: then folder and cgroup":                   {to(GoalGone), in(running, ContainerNone), Step{Do: RemoveFolder}},
		"gone: the record last":                          {to(GoalGone), Seen{Recorded: true, Container: ContainerNone, Fetch: WorkIdle, Upload: WorkIdle}, Step{Do: Forget}},
		"to be frozen: freeze":                           {at(LevelFrozen), running, Step{Do: Freeze}},
		"a frozen task's helper ends after it stands":    {at(LevelFrozen), seen(frozen, func(s *Seen) { s.Fetch = WorkBusy }), Step{Do: StopHelpers}},
		"frozen as wanted":                               {at(LevelFrozen), frozen, Step{Do: Wait}},
		"a frozen task that shall run thaws":             {run, frozen, Step{Do: Thaw}},
		"a running task shall be swapped: freeze first":  {at(LevelSwapped), running, Step{Do: Freeze}},
		"then its memory goes":                           {at(LevelSwapped), frozen, Step{Do: SwapOut}},
		"swapped as wanted":                              {at(LevelSwapped), seen(frozen, func(s *Seen) { s.Swapped = true }), Step{Do: Wait}},
		"deeper than wanted stays":                       {at(LevelFrozen), seen(frozen, func(s *Seen) { s.Swapped = true }), Step{Do: Wait}},
		"a frozen task is dumped":                        {at(LevelCheckpointed), frozen, Step{Do: Checkpoint}},
		"a dump that failed leaves it frozen":            {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Barred = s.Barred.With(LevelCheckpointed).With(LevelSwapped) }), Step{Do: Wait}},
		"or swapped":                                     {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Barred = s.Barred.With(LevelCheckpointed) }), Step{Do: SwapOut}},
		"with every level barred it runs on":             {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Barred = ^Levels(0) }), Step{Do: Thaw}},
		"a container that a dump ended is no result":     {at(LevelCheckpointed), seen(stopped, func(s *Seen) { s.Dumping = true }), Step{Do: Checkpoint}},
		"nor is its absence, while the dump is unproven": {run, seen(in(running, ContainerNone), func(s *Seen) { s.Dumping = true }), Step{Do: Checkpoint}},
		"a dump waits":                                   {at(LevelCheckpointed), dump, Step{Do: Wait}},
		"a dump of which less is wanted waits too":       {at(LevelFrozen), dump, Step{Do: Wait}},
		"a dump that shall run is restored":              {run, dump, Step{Do: Restore}},
		"a half made container of a dump is not started": {run, seen(dump, func(s *Seen) { s.Container = ContainerCreated }), Step{Do: Restore}},
		"a dump whose image is not here gets it first":   {run, seen(dump, func(s *Seen) { s.Image = false }), Step{Do: GetImage}},
		"a dump that cannot be restored here waits":      {run, seen(dump, func(s *Seen) { s.Barred = s.Barred.With(LevelRunning) }), Step{Do: Wait}},
		"a dump that is not wanted any more is the end":  {to(GoalStop), dump, Step{Do: End}},
		"what runs again drops its dump":                 {run, seen(running, func(s *Seen) { s.OldDump = true }), Step{Do: DropDump}},
		"a frozen task that shall stop is killed":        {to(GoalStop), frozen, Step{Do: Kill}},
		"one that comes from another node is fetched":    {moving, seen(none, func(s *Seen) { s.Recorded, s.Folder = true, true }), Step{Do: FetchDump}},
		"and restored":                                   {moving, dump, Step{Do: Restore}},
		"what cannot be fetched waits to be told":        {moving, seen(none, func(s *Seen) { s.Recorded, s.Folder, s.Barred = true, true, s.Barred.With(LevelRunning) }), Step{Do: Wait}},
		"on hold nothing is started":                     {held, in(prepared, ContainerCreated), Step{Do: Wait}},
		"but prepared":                                   {held, prepared, Step{Do: CreateContainer}},
		"nor restored":                                   {held, dump, Step{Do: Wait}},
		"nor fetched":                                    {with(moving, func(w *Wanted) { w.Hold = true }), seen(none, func(s *Seen) { s.Recorded, s.Folder = true, true }), Step{Do: Wait}},
		"and what runs is frozen":                        {held, running, Step{Do: Freeze}},
		"and stays so":                                   {held, frozen, Step{Do: Wait}},
		"gone waits for the engine":                      {to(GoalGone), in(running, ContainerUnknown), Step{Do: Wait, Again: time.Second}},
		"gone is gone":                                   {to(GoalGone), none, Step{Do: Rest}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(c.w, c.s); got != c.want {
				t.Errorf("Next = %v again %v, want %v again %v", got.Do, got.Again, c.want.Do, c.want.Again)
			}
		})
	}
}

// world is a slow, obvious model of a node with one attempt. apply does what a
// step promises; crash is what a restart of the daemon does to memory.
type world struct {
	seen Seen
	w    Wanted
}

func (m *world) apply(d Do) {
	s := &m.seen
	switch d {
	case MakeFolder:
		s.Recorded, s.Folder, s.Scratch = true, true, true
	case GetImage:
		s.Image = true
	case GetFiles:
		s.Files = true
	case MakeCgroup:
		s.Cgroup = true
	case StartFetch:
		s.Fetch = WorkBusy
	case CreateContainer:
		if s.Container == ContainerNone {
			s.Container = ContainerCreated
		}
	case Start:
		s.Started = true
		if s.Container == ContainerCreated {
			s.Container = ContainerRunning
		}
	case Terminate:
		s.Terminate = true
	case Kill:
		s.Container = ContainerStopped
	case Judge:
		s.Passed = true
	case StartUpload:
		s.Upload = WorkBusy
	case End:
		s.Ended, s.Recorded = true, true
	case StopHelpers:
		s.Fetch, s.Upload = WorkIdle, WorkIdle
	case DeleteContainer:
		s.Container = ContainerNone
	case Trim:
		s.Scratch = false
	case RemoveFolder:
		s.Folder, s.Cgroup, s.Files, s.Scratch, s.OldDump = false, false, false, false, false
	case Forget:
		s.Recorded, s.Started, s.Ended, s.Dumping, s.Dumped = false, false, false, false, false
	case Freeze:
		s.Frozen = true
	case Thaw:
		s.Frozen, s.Swapped = false, false
	case SwapOut:
		s.Swapped = true
	case Checkpoint:
		s.Dumping, s.Dumped, s.Container, s.Frozen, s.Swapped = true, true, ContainerNone, false, false
	case Restore:
		s.Dumping, s.Dumped, s.OldDump, s.Container = false, false, true, ContainerRunning
	case FetchDump:
		s.Dumping, s.Dumped, s.Started = true, true, true
	case DropDump:
		s.OldDump = false
	default:
		panic("model: " + d.String())
	}
}

// pass lets the world move on its own while the daemon waits.
func (m *world) pass(again time.Duration) {
	s := &m.seen
	switch {
	case s.Container == ContainerUnknown:
		s.Container = ContainerNone // the engine is back; whichever answer it gives, the goal is reached
	case s.Container == ContainerRunning && again > 0: // it hangs until its time or its grace is over
		s.Running += again
		if s.Terminate {
			s.SinceTerm += again
		}
	case m.w.Level > LevelRunning && m.w.Goal == GoalRun: // suspended, until the coordinator says otherwise
		m.w.Level = LevelRunning
	case s.Barred.Has(LevelRunning) && m.w.Goal == GoalRun: // it cannot come back here
		m.w.Goal = GoalStop
	case s.Upload == WorkBusy:
		s.Upload = WorkDone
	case s.Container == ContainerRunning:
		s.Container = ContainerStopped
	}
}

func (m *world) crash() {
	s := &m.seen
	s.Fetch, s.Upload, s.Passed, s.Fault, s.Terminate, s.SinceTerm = WorkIdle, WorkIdle, false, false, false, 0
}

func anyWanted(t *rapid.T) Wanted {
	return Wanted{
		Goal:      Goal(rapid.IntRange(int(GoalRun), int(GoalGone)).Draw(t, "goal")),
		Level:     Level(rapid.IntRange(0, int(LevelCheckpointed)).Draw(t, "level")),
		Resume:    rapid.Bool().Draw(t, "resume"),
		Fetch:     rapid.Bool().Draw(t, "fetch"),
		Upload:    rapid.Bool().Draw(t, "upload"),
		TimeLimit: time.Duration(rapid.IntRange(0, 3).Draw(t, "limit")) * time.Second,
		Grace:     time.Duration(rapid.IntRange(0, 3).Draw(t, "grace")) * time.Second,
	}
}

func anySeen(t *rapid.T) Seen {
	b := func(name string) bool { return rapid.Bool().Draw(t, name) }
	return Seen{
		Recorded: b("recorded"), Started: b("started"), Ended: b("ended"),
		Folder: b("folder"), Image: b("image"), Files: b("files"), Cgroup: b("cgroup"),
		Container: Container(rapid.IntRange(1, len(containerNames)).Draw(t, "container")),
		Scratch:   b("scratch"),
		Dumping:   b("dumping"), Dumped: b("dumped"), Frozen: b("frozen"), Swapped: b("swapped"), OldDump: b("old dump"),
		Barred: Levels(rapid.IntRange(0, 31).Draw(t, "barred")),
		Fetch:  Work(rapid.IntRange(1, len(workNames)).Draw(t, "fetching")),
		Upload: Work(rapid.IntRange(1, len(workNames)).Draw(t, "uploading")),
		Passed: b("passed"), Fault: b("fault"), Terminate: b("terminated"),
		SinceTerm: time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second,
		Running:   time.Duration(rapid.IntRange(0, 4).Draw(t, "running")) * time.Second,
	}
}

// From any state, with crashes and steps whose effect or answer is lost, the
// goal is reached, and there Next rests.
func TestAnyStateReachesTheGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &world{seen: anySeen(t), w: anyWanted(t)}
		faults := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 12).Draw(t, "faults")
		const limit = 80
		for n := 0; ; n++ {
			if n > limit {
				t.Fatalf("no rest after %d steps: %+v", n, m.seen)
			}
			step := Next(m.w, m.seen)
			if step.Do == Rest {
				break
			}
			fault := 5
			if n < len(faults) {
				fault = faults[n]
			}
			switch {
			case step.Do == Wait:
				m.pass(step.Again)
			case fault == 0: // the step failed and changed nothing
			case fault == 1: // its effect is there, and then the daemon died
				m.apply(step.Do)
				m.crash()
			case fault == 2: // done twice
				m.apply(step.Do)
				m.apply(step.Do)
			default:
				m.apply(step.Do)
			}
		}
		atGoal(t, m)
	})
}

func atGoal(t *rapid.T, m *world) {
	s := m.seen
	if s.Container != ContainerNone || s.Folder && s.Scratch || s.OldDump {
		t.Fatalf("rest with a container, a dump or scratch files: %+v", s)
	}
	if m.w.Goal == GoalGone {
		if s.Recorded || s.Folder || s.Cgroup {
			t.Fatalf("gone, but something is left: %+v", s)
		}
		return
	}
	if !s.Ended {
		t.Fatalf("rest without a verdict: %+v", s)
	}
}

// A step that starts anything is never given to an attempt that has ended or
// that nobody wants.
func TestNothingStartsAfterTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := anyWanted(t), anySeen(t)
		step := Next(w, s)
		starts := step.Do >= MakeFolder && step.Do <= Start || step.Do == StartUpload
		if starts && (s.Ended || w.Goal != GoalRun || s.Fault) {
			t.Fatalf("%v for goal %v in %+v", step.Do, w.Goal, s)
		}
		if step.Do == CreateContainer && s.Started {
			t.Fatalf("a second container for a started attempt: %+v", s)
		}
		if (step.Do == Start || step.Do == CreateContainer) && s.Dumped {
			t.Fatalf("%v for an attempt that is a dump: %+v", step.Do, s)
		}
		if step.Do == Restore && (s.Container == ContainerRunning || !s.Dumped || s.Barred.Has(LevelRunning) || w.Level > LevelRunning) {
			t.Fatalf("restore in %+v, wanted %+v", s, w)
		}
		if step.Do == Thaw && Reach(max(w.Level, LevelRunning), s.Barred) != LevelRunning {
			t.Fatalf("thaw of an attempt that is wanted at %v: %+v", w.Level, s)
		}
	})
}

func TestClosedSetsPrint(t *testing.T) {
	for d := Rest; d <= DropDump; d++ {
		if got := d.String(); got == "" || got[len(got)-1] == ')' {
			t.Errorf("step %d prints as %q", d, got)
		}
	}
	if got := Do(99).String(); got != "step(99)" {
		t.Errorf("an unknown step prints as %q", got)
	}
}
