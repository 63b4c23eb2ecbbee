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
	passed := seen(stopped, func(s *Seen) { s.ExitOK = true })
	frozen := seen(running, func(s *Seen) { s.Frozen = true })
	dump := seen(in(running, ContainerNone), func(s *Seen) { s.Dumping, s.Dumped = true, true })
	at := func(l Level) Wanted { return with(run, func(w *Wanted) { w.Level = l }) }
	moving := with(run, func(w *Wanted) { w.Resume = true })
	blocked := with(at(LevelFrozen), func(w *Wanted) { w.StartBlocked = true })
	paused := with(run, func(w *Wanted) { w.StartPause = 3 * time.Second })
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
		"input is on its way before the container is":  {fetching, prepared, Step{Do: StartFetch}},
		"a group has no input":                         {run, prepared, Step{Do: CreateContainer}},
		"a created container is started":               {run, in(prepared, ContainerCreated), Step{Do: Start}},
		"a running task waits":                         {run, running, Step{Do: Wait}},
		"a running task is checked when its time ends": {limited, seen(running, func(s *Seen) { s.Running = 20 * time.Second }), Step{Do: Wait, RecheckAfter: 40 * time.Second}},
		"a restarted daemon resumes the fetch":         {fetching, running, Step{Do: StartFetch}},
		"a restarted daemon fetches no files again":    {run, seen(running, func(s *Seen) { s.Files, s.Image = false, false }), Step{Do: Wait}},
		"a stopped container is classified":            {run, stopped, Step{Do: ClassifyExit}},
		"success without an upload is the end":         {run, passed, Step{Do: RecordEnd}},
		"a successful result is uploaded":              {uploading, passed, Step{Do: StartUpload}},
		"an upload takes its time":                     {uploading, seen(passed, func(s *Seen) { s.Upload = WorkBusy }), Step{Do: Wait}},
		"an upload that is done is the end":            {uploading, seen(passed, func(s *Seen) { s.Upload = WorkDone }), Step{Do: RecordEnd}},
		"an upload that failed is the end":             {uploading, seen(passed, func(s *Seen) { s.Upload = WorkFailed }), Step{Do: RecordEnd}},
		"a container that vanished is the end":         {run, in(running, ContainerNone), Step{Do: RecordEnd}},
		"an engine that is down ends nothing":          {run, in(running, ContainerUnknown), Step{Do: Wait, RecheckAfter: time.Second}},
		"without a lease it is frozen, engine or not":  {blocked, in(running, ContainerUnknown), Step{Do: Freeze}},
		"and then the engine is waited for":            {blocked, in(frozen, ContainerUnknown), Step{Do: Wait, RecheckAfter: time.Second}},
		"what did not start is not frozen":             {blocked, in(prepared, ContainerUnknown), Step{Do: Wait, RecheckAfter: time.Second}},
		"nor is what criu works in":                    {blocked, seen(in(running, ContainerUnknown), func(s *Seen) { s.Dumping = true }), Step{Do: Wait, RecheckAfter: time.Second}},
		"a request to freeze waits for the engine":     {at(LevelFrozen), in(running, ContainerUnknown), Step{Do: Wait, RecheckAfter: time.Second}},
		"over its time limit: TERM":                    {limited, seen(running, func(s *Seen) { s.Running = time.Minute }), Step{Do: Terminate}},
		"then the grace": {limited, seen(running, func(s *Seen) { s.Running, s.TermSent, s.SinceTerm = time.Minute, true, 4*time.Second }),
			Step{Do: Wait, RecheckAfter: 6 * time.Second}},
		"then KILL":                                                   {limited, seen(running, func(s *Seen) { s.Running, s.TermSent, s.SinceTerm = time.Minute, true, 10*time.Second }), Step{Do: Kill}},
		"stop: TERM first":                                            {to(GoalStop), running, Step{Do: Terminate}},
		"stop before the start is the end":                            {to(GoalStop), in(prepared, ContainerCreated), Step{Do: RecordEnd}},
		"stop during a fetch stops the helper":                        {to(GoalStop), seen(prepared, func(s *Seen) { s.Fetch = WorkBusy }), Step{Do: StopHelpers}},
		"a fault before the start is the end":                         {run, seen(none, func(s *Seen) { s.Failed = true }), Step{Do: RecordEnd}},
		"a fault of a running task ends it":                           {run, seen(running, func(s *Seen) { s.Failed = true }), Step{Do: Terminate}},
		"an ended attempt loses its container":                        {run, ended, Step{Do: DeleteContainer}},
		"and its cgroup":                                              {run, in(ended, ContainerNone), Step{Do: RemoveCgroup}},
		"and its scratch files":                                       {run, seen(in(ended, ContainerNone), func(s *Seen) { s.Cgroup = false }), Step{Do: Trim}},
		"and then rests":                                              {to(GoalKeep), seen(in(ended, ContainerNone), func(s *Seen) { s.Scratch, s.Cgroup = false, false }), Step{Do: Rest}},
		"keep of an attempt that has not ended ends it":               {to(GoalKeep), running, Step{Do: Terminate}},
		"gone: the container first":                                   {to(GoalGone), running, Step{Do: DeleteContainer}},
		"gone: then folder and cgroup":                                {to(GoalGone), in(running, ContainerNone), Step{Do: RemoveFolder}},
		"gone: the record last":                                       {to(GoalGone), Seen{Recorded: true, Container: ContainerNone, Fetch: WorkIdle, Upload: WorkIdle}, Step{Do: DeleteRecord}},
		"to be frozen: freeze":                                        {at(LevelFrozen), running, Step{Do: Freeze}},
		"a frozen task's helper is stopped after the freeze":          {at(LevelFrozen), seen(frozen, func(s *Seen) { s.Fetch = WorkBusy }), Step{Do: StopHelpers}},
		"frozen as wanted":                                            {at(LevelFrozen), frozen, Step{Do: Wait}},
		"frozen, but not in the store: again":                         {at(LevelFrozen), seen(frozen, func(s *Seen) { s.Unstored = true }), Step{Do: Freeze}},
		"not in the store, and no longer wanted: thaw":                {at(LevelRunning), seen(frozen, func(s *Seen) { s.Unstored = true }), Step{Do: Thaw}},
		"a frozen task that must run is thawed":                       {run, frozen, Step{Do: Thaw}},
		"a running task is to be swapped: freeze first":               {at(LevelSwapped), running, Step{Do: Freeze}},
		"then its memory is swapped out":                              {at(LevelSwapped), frozen, Step{Do: SwapOut}},
		"swapped as wanted":                                           {at(LevelSwapped), seen(frozen, func(s *Seen) { s.Swapped = true }), Step{Do: Wait}},
		"deeper than wanted stays":                                    {at(LevelFrozen), seen(frozen, func(s *Seen) { s.Swapped = true }), Step{Do: Wait}},
		"a frozen task is dumped":                                     {at(LevelCheckpointed), frozen, Step{Do: Checkpoint}},
		"a dump that failed leaves it frozen":                         {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Refused = s.Refused.With(LevelCheckpointed).With(LevelSwapped) }), Step{Do: Wait}},
		"or swapped":                                                  {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Refused = s.Refused.With(LevelCheckpointed) }), Step{Do: SwapOut}},
		"with every level refused it keeps running":                   {at(LevelCheckpointed), seen(frozen, func(s *Seen) { s.Refused = ^Levels(0) }), Step{Do: Thaw}},
		"a container ended by a dump is no result":                    {at(LevelCheckpointed), seen(stopped, func(s *Seen) { s.Dumping = true }), Step{Do: Checkpoint}},
		"nor is its absence, while the dump is unproven":              {run, seen(in(running, ContainerNone), func(s *Seen) { s.Dumping = true }), Step{Do: Checkpoint}},
		"a proven dump's container is removed":                        {at(LevelCheckpointed), in(dump, ContainerStopped), Step{Do: RemoveDumped}},
		"also before it is restored":                                  {run, in(dump, ContainerStopped), Step{Do: RemoveDumped}},
		"a dump waits":                                                {at(LevelCheckpointed), dump, Step{Do: Wait}},
		"a dump at a deeper level than wanted waits too":              {at(LevelFrozen), dump, Step{Do: Wait}},
		"a dump that must run is restored":                            {run, dump, Step{Do: Restore}},
		"a container created for a restore is not started":            {run, seen(dump, func(s *Seen) { s.Container = ContainerCreated }), Step{Do: Restore}},
		"a dump whose image is missing gets it first":                 {run, seen(dump, func(s *Seen) { s.Image = false }), Step{Do: GetImage}},
		"a dump that cannot be restored here waits":                   {run, seen(dump, func(s *Seen) { s.Refused = s.Refused.With(LevelRunning) }), Step{Do: Wait}},
		"a dump that is not wanted any more is the end":               {to(GoalStop), dump, Step{Do: RecordEnd}},
		"a task that runs again has its dump removed":                 {run, seen(running, func(s *Seen) { s.StaleDump = true }), Step{Do: RemoveDumps}},
		"a frozen task that must stop is killed":                      {to(GoalStop), frozen, Step{Do: Kill}},
		"an attempt from another node is fetched":                     {moving, seen(none, func(s *Seen) { s.Recorded, s.Folder = true, true }), Step{Do: FetchDump}},
		"and restored":                                                {moving, dump, Step{Do: Restore}},
		"an attempt that cannot be fetched waits for the coordinator": {moving, seen(none, func(s *Seen) { s.Recorded, s.Folder, s.Refused = true, true, s.Refused.With(LevelRunning) }), Step{Do: Wait}},
		"nor if this node cannot have its folder":                     {moving, seen(none, func(s *Seen) { s.Refused = s.Refused.With(LevelRunning) }), Step{Do: Wait}},
		"while starts are blocked nothing starts":                     {blocked, in(prepared, ContainerCreated), Step{Do: Wait}},
		"but it is prepared":                                          {blocked, prepared, Step{Do: CreateContainer}},
		"nor restored":                                                {blocked, dump, Step{Do: Wait}},
		"nor fetched":                                                 {with(moving, func(w *Wanted) { w.StartBlocked = true }), seen(none, func(s *Seen) { s.Recorded, s.Folder = true, true }), Step{Do: Wait}},
		"a repeated attempt pauses before its start":                  {paused, in(prepared, ContainerCreated), Step{Do: Wait, RecheckAfter: 3 * time.Second}},
		"but is prepared":                                             {paused, prepared, Step{Do: CreateContainer}},
		"and a paused one can be stopped":                             {with(paused, func(w *Wanted) { w.Goal = GoalStop }), in(prepared, ContainerCreated), Next(to(GoalStop), in(prepared, ContainerCreated))},
		"and a running task is frozen":                                {blocked, running, Step{Do: Freeze}},
		"and stays so":                                                {blocked, frozen, Step{Do: Wait}},
		"gone waits for the engine":                                   {to(GoalGone), in(running, ContainerUnknown), Step{Do: Wait, RecheckAfter: time.Second}},
		"gone is gone":                                                {to(GoalGone), none, Step{Do: Rest}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(c.w, c.s); got != c.want {
				t.Errorf("Next = %v again %v, want %v again %v", got.Do, got.RecheckAfter, c.want.Do, c.want.RecheckAfter)
			}
		})
	}
}

// model is a slow, obvious model of a node with one attempt. apply has the effect
// that a step promises; crash is the effect of a daemon's restart on memory.
type model struct {
	seen Seen
	w    Wanted
}

func (m *model) apply(d Do) {
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
	case RemoveCgroup:
		s.Cgroup = false
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
		s.TermSent = true
	case Kill:
		s.Container = ContainerStopped
	case ClassifyExit:
		s.ExitOK = true
	case StartUpload:
		s.Upload = WorkBusy
	case RecordEnd:
		s.Ended, s.Recorded = true, true
	case StopHelpers:
		s.Fetch, s.Upload = WorkIdle, WorkIdle
	case DeleteContainer, RemoveDumped:
		s.Container = ContainerNone
	case Trim:
		s.Scratch = false
	case RemoveFolder:
		s.Folder, s.Cgroup, s.Files, s.Scratch, s.StaleDump = false, false, false, false, false
	case DeleteRecord:
		s.Recorded, s.Started, s.Ended, s.Dumping, s.Dumped = false, false, false, false, false
	case Freeze:
		s.Frozen = true
	case Thaw:
		s.Frozen, s.Swapped = false, false
	case SwapOut:
		s.Swapped = true
	case Checkpoint:
		s.Dumping, s.Dumped, s.Container, s.Frozen, s.Swapped = true, true, ContainerStopped, false, false
	case Restore:
		s.Dumping, s.Dumped, s.StaleDump, s.Container = false, false, true, ContainerRunning
	case FetchDump:
		s.Dumping, s.Dumped, s.Started = true, true, true
	case RemoveDumps:
		s.StaleDump = false
	default:
		panic("model: " + d.String())
	}
}

// elapse lets the world change on its own while the daemon waits.
func (m *model) elapse(again time.Duration) {
	s := &m.seen
	switch {
	case s.Container == ContainerUnknown:
		s.Container = ContainerNone // the engine is back; the goal is reached with any of its answers
	case s.Container == ContainerRunning && again > 0: // it runs until its time limit or grace period is over
		s.Running += again
		if s.TermSent {
			s.SinceTerm += again
		}
	case m.w.Level > LevelRunning && m.w.Goal == GoalRun: // suspended until the coordinator requests another level
		m.w.Level = LevelRunning
	case s.Refused.Has(LevelRunning) && m.w.Goal == GoalRun: // it cannot be restored here
		m.w.Goal = GoalStop
	case s.Upload == WorkBusy:
		s.Upload = WorkDone
	case s.Container == ContainerRunning:
		s.Container = ContainerStopped
	}
}

func (m *model) crash() {
	s := &m.seen
	s.Fetch, s.Upload, s.ExitOK, s.Failed, s.TermSent, s.SinceTerm = WorkIdle, WorkIdle, false, false, false, 0
	s.Cgroup = s.Cgroup && (s.Ended || m.w.Goal == GoalGone)
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
		Dumping:   b("dumping"), Dumped: b("dumped"), Frozen: b("frozen"), Swapped: b("swapped"), StaleDump: b("old dump"),
		Refused: Levels(rapid.IntRange(0, 31).Draw(t, "refused")),
		Fetch:   Work(rapid.IntRange(1, len(workNames)).Draw(t, "fetching")),
		Upload:  Work(rapid.IntRange(1, len(workNames)).Draw(t, "uploading")),
		ExitOK:  b("passed"), Failed: b("fault"), TermSent: b("terminated"),
		SinceTerm: time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second,
		Running:   time.Duration(rapid.IntRange(0, 4).Draw(t, "running")) * time.Second,
	}
}

// From any state, with crashes and with steps whose effect or answer is lost, the
// goal is reached, where Next returns Rest.
func TestEveryStateReachesItsGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{seen: anySeen(t), w: anyWanted(t)}
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
				m.elapse(step.RecheckAfter)
			case fault == 0: // the step failed and changed nothing
			case fault == 1: // the step had its effect, and then the daemon died
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

func atGoal(t *rapid.T, m *model) {
	s := m.seen
	if s.Container != ContainerNone || s.Folder && s.Scratch || s.StaleDump {
		t.Fatalf("rest with a container, a dump or scratch files: %+v", s)
	}
	if m.w.Goal == GoalGone {
		if s.Recorded || s.Folder || s.Cgroup {
			t.Fatalf("gone, but something is left: %+v", s)
		}
		return
	}
	if !s.Ended {
		t.Fatalf("rest without a recorded end: %+v", s)
	}
}

// No step that starts something is returned for an attempt that has ended or is
// not wanted.
func TestNothingStartsAfterTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := anyWanted(t), anySeen(t)
		step := Next(w, s)
		starts := step.Do >= MakeFolder && step.Do <= Start || step.Do == StartUpload
		if starts && (s.Ended || w.Goal != GoalRun || s.Failed) {
			t.Fatalf("%v for goal %v in %+v", step.Do, w.Goal, s)
		}
		if step.Do == CreateContainer && s.Started {
			t.Fatalf("a second container for a started attempt: %+v", s)
		}
		if (step.Do == Start || step.Do == CreateContainer) && s.Dumped {
			t.Fatalf("%v for an attempt that is a dump: %+v", step.Do, s)
		}
		if step.Do == Restore && (s.Container == ContainerRunning || !s.Dumped || s.Refused.Has(LevelRunning) || w.Level > LevelRunning) {
			t.Fatalf("restore in %+v, wanted %+v", s, w)
		}
		if step.Do == Thaw && ReachableLevel(max(w.Level, LevelRunning), s.Refused) != LevelRunning {
			t.Fatalf("thaw of an attempt that is wanted at %v: %+v", w.Level, s)
		}
	})
}

func TestClosedSetsPrint(t *testing.T) {
	for d := Rest; d <= RemoveDumps; d++ {
		if got := d.String(); got == "" || got[len(got)-1] == ')' {
			t.Errorf("step %d prints as %q", d, got)
		}
	}
	if got := Do(99).String(); got != "step(99)" {
		t.Errorf("an unknown step prints as %q", got)
	}
}
