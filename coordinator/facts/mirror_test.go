package facts

import (
	"fmt"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// The log has the scheduler's numbers, and the facts, which do not import the scheduler, have them once more.
func TestNumbersOfTheSchedulerAreMirrored(t *testing.T) {
	for k, want := range map[ActionKind]scheduler.ActionKind{ActPlace: scheduler.ActPlace, ActSuspend: scheduler.ActSuspend, ActResume: scheduler.ActResume,
		ActMigrate: scheduler.ActMigrate, ActKill: scheduler.ActKill, ActReserve: scheduler.ActReserve, ActUnreserve: scheduler.ActUnreserve} {
		if int(k) != int(want) {
			t.Errorf("action %v is %d in the facts, %d in the scheduler", want, k, want)
		}
	}
	if next := ActUnreserve + 1; isNamed(scheduler.ActionKind(next).String()) {
		t.Errorf("the facts do not know action %v", scheduler.ActionKind(next))
	}
	for k, want := range map[int]scheduler.PolicyStateKind{tombstoneState: scheduler.TombstoneState, guaranteeState: scheduler.GuaranteeState,
		latestDepartureState: scheduler.LatestDepartureState, violatedState: scheduler.ViolatedState, acceptedState: scheduler.AcceptedState, refusedState: scheduler.RefusedState} {
		if k != int(want) {
			t.Errorf("policy state %v is %d in the facts, %d in the scheduler", want, k, want)
		}
	}
	for l, want := range map[droverv1.Level]scheduler.Level{droverv1.Level_LEVEL_RUNNING: scheduler.LevelRunning, droverv1.Level_LEVEL_FROZEN: scheduler.LevelFrozen,
		droverv1.Level_LEVEL_SWAPPED: scheduler.LevelSwapped, droverv1.Level_LEVEL_CHECKPOINTED: scheduler.LevelCheckpointed} {
		if int(l) != int(want) {
			t.Errorf("level %v is %d in the log, %d in the scheduler", want, l, want)
		}
	}
	if n := scheduler.New().Reservations().Left(); n != maxReservations {
		t.Errorf("the facts take %d reservations, the scheduler's State %d", maxReservations, n)
	}
	causes := int32(0)
	for c := backfill.Cause(1); isNamed(c.String()); c++ {
		causes++
		if got := violationCause(causes); got != c.String() {
			t.Errorf("cause %d is %q in the facts, %q in the scheduler", c, got, c)
		}
	}
	if causes == 0 || violationCause(causes+1) != fmt.Sprint("cause ", causes+1) {
		t.Errorf("the facts name more causes than the scheduler's %d", causes)
	}
}

// isNamed reports whether a value of an enumeration has a word.
func isNamed(s string) bool { return !strings.Contains(s, "(") }
