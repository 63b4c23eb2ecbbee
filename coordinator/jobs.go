package coordinator

import (
	"context"
	"errors"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of carrying out intents.
const (
	intentTries = 40 // before a result counts as not to be published
	intentPause = 100 * time.Millisecond
	intentMost  = 15 * time.Second // longest pause between two tries
	intentLimit = 2 * time.Minute  // of one try
)

// follow carries out what a job's state asks of the outside world. It is
// called under the facts' lock and only starts things.
func (l *leader) follow(ctx context.Context, f *facts.Facts, j *facts.Job) {
	if j.State == droverv1.JobState_JOB_STATE_COMMITTING {
		o, id, out := commitOrder(f, j), j.ID, j.Output
		l.once(intent{id, intentCommit}, func() { l.commitResult(ctx, id, out, o) })
	}
	if !j.HasEnded() || j.Live > 0 {
		return
	}
	if !l.over[j.ID] { // its last change may come more than once
		l.over[j.ID] = true
		l.keepLogs(j)
		l.c.finished(f, j)
	}
	if !j.Cleaned {
		// Nothing of it runs any more, so nothing writes there any more.
		o, id, out := cleanOrder(f, j), j.ID, j.Output
		l.once(intent{id, intentClean}, func() { l.clean(ctx, id, out, o) })
	}
}

// commitResult has a node publish a job's result and tells how that ended. A
// no of the file system ends the job; a node or NameNode that is away is asked
// again.
func (l *leader) commitResult(ctx context.Context, job uint64, output string, o *droverv1.Order) {
	err := l.carryOut(ctx, output, o)
	end := &droverv1.JobEndedFact{Job: job, State: droverv1.JobState_JOB_STATE_SUCCEEDED}
	if err != nil {
		end.State, end.Message = droverv1.JobState_JOB_STATE_FAILED, "its tasks are done, but the result could not be published: "+err.Error()
	}
	l.tell(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_JobEnded{JobEnded: end}})
}

// clean has a node remove a job's temporary folder. When that fails for good
// the folder stays behind; the path is free all the same, and it is said.
func (l *leader) clean(ctx context.Context, job uint64, output string, o *droverv1.Order) {
	if err := l.carryOut(ctx, output, o); err != nil && ctx.Err() == nil {
		l.c.log.Warn("a temporary folder stays behind", "job", job, "path", o.GetDeletePath().GetPath(), "err", err)
	}
	l.tell(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_JobCleaned{JobCleaned: &droverv1.JobCleanedFact{Job: job}}})
}

// tell proposes what became of an intent; a new leader asks again where it
// fails.
func (l *leader) tell(ctx context.Context, e *droverv1.Entry) {
	if ctx.Err() != nil {
		return
	}
	if _, err := l.c.replica.Propose(ctx, e); err != nil && ctx.Err() == nil {
		l.c.log.Error("an intent was carried out but could not be noted", "err", err)
	}
}

func (l *leader) carryOut(ctx context.Context, output string, o *droverv1.Order) error {
	pause := intentPause
	for try := 1; ; try++ {
		tctx, cancel := context.WithTimeout(ctx, intentLimit)
		_, err := l.c.orders.ask(tctx, o, scheme(output), 0, nil)
		cancel()
		if err == nil || !errors.Is(err, fault.Unavailable) || try >= intentTries || ctx.Err() != nil {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		pause = min(2*pause, intentMost)
	}
}
