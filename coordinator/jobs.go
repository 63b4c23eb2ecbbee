package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of intents.
const (
	maxIntentTries = 40 // before a result counts as unpublishable
	intentPause    = 100 * time.Millisecond
	maxIntentPause = 15 * time.Second // longest pause between two tries
	intentTimeout  = 2 * time.Minute  // of one try
)

// followJob starts the intents that a job's state requires. It is called under the facts' lock and
// must not block.
func (l *leader) followJob(ctx context.Context, f *facts.Facts, j *facts.Job) {
	if j.State == droverv1.JobState_JOB_STATE_COMMITTING {
		request, id, out := commitRequest(f, j), j.ID, j.Output
		l.intents.start(intent{id, intentCommit}, func() { l.intents.commitResult(ctx, id, out, request) })
	}
	if !j.HasEnded() || j.Live > 0 {
		return
	}
	if !l.finalized[j.ID] { // a job's last change may be delivered more than once
		l.finalized[j.ID] = true
		delete(l.outputs.missing, j.ID)
		if j.MapStage() >= 0 && j.ReduceStage() >= 0 {
			l.c.wanted.review(f, j) // nobody fetches its map outputs any more
		}
		l.c.ended.record(f, j)
	}
	if j.LogsToGather() {
		id := j.ID
		l.intents.start(intent{id, intentLogs}, func() { l.intents.gatherLogs(ctx, id) })
	} else {
		l.logs.schedule(j, l.c.cfg.KeepLogs)
	}
	if !j.Cleaned {
		// No attempt is active any more, so nothing writes there.
		request, id, out := cleanupRequest(f, j), j.ID, j.Output
		l.intents.start(intent{id, intentClean}, func() { l.intents.cleanOutput(ctx, id, out, request) })
	}
}

// intent is an action on the outside world for a job.
type intent struct {
	job  uint64
	kind intentKind
}

type intentKind int

const (
	intentCommit intentKind = iota + 1
	intentClean
	intentLogs
	intentCheck
)

// intents are the intents of one leader that are in progress, each in a goroutine.
type intents struct {
	c    *core
	term uint64
	wg   sync.WaitGroup

	outputChecked map[uint64]bool // jobs from before a restore whose output was checked; owned by the loop

	mu   sync.Mutex
	busy map[intent]bool
}

// start executes an intent in a goroutine, unless it is already in progress.
func (n *intents) start(i intent, fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[i] {
		return
	}
	n.busy[i] = true
	n.wg.Go(func() {
		defer func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.busy, i)
		}()
		fn()
	})
}

// commitResult publishes a job's result through a node and proposes the
// outcome. A refusal by the file system fails the job; if a node or the
// NameNode is unavailable, it tries again.
func (n *intents) commitResult(ctx context.Context, job uint64, output string, request *droverv1.NodeRequest) {
	err := n.requestWithRetry(ctx, output, request)
	end := &droverv1.JobEndedFact{Job: job, State: droverv1.JobState_JOB_STATE_SUCCEEDED}
	if err != nil {
		end.State, end.Message = droverv1.JobState_JOB_STATE_FAILED, "its tasks are done, but the result could not be published: "+err.Error()
	}
	n.proposeOutcome(ctx, &droverv1.Entry{Body: &droverv1.Entry_JobEnded{JobEnded: end}})
}

// checkOutput checks whether a job from before a restore has already published its result. It is
// called when a task of the job is placed, and no earlier: until then a node may report the end of
// an attempt with which the job succeeds. It is called under the facts' lock and must not block.
func (n *intents) checkOutput(ctx context.Context, f *facts.Facts, c *facts.Change) {
	j, a := f.Job(c.Key.Job), f.Attempt(c.Key)
	if j == nil || a == nil || j.Output == "" || n.outputChecked[j.ID] || !facts.RestoresOf(f).IsOlder(j.ID) || a.Suspension.Unknown {
		return
	}
	n.outputChecked[j.ID] = true
	id, out, temporary, user, node := j.ID, j.Output, j.Temporary, hdfsUser(f, j.Spec), c.Node
	n.start(intent{id, intentCheck}, func() { n.stopIfPublished(ctx, id, out, temporary, user, node) })
}

// publishedText is the reason of the stop, in the middle of a sentence.
const publishedText = "its output is there and the folder of its unfinished output is not: it ended before the coordinator was restored from an archive of an earlier time. Use the output, or remove it and submit the job again"

// stopIfPublished stops a job if something is at its output path and its temporary folder is gone,
// which is the state after a publication: no attempt of it could write its output. One node checks
// both. If the check fails, the job continues.
func (n *intents) stopIfPublished(ctx context.Context, job uint64, output, temporary, user string, node int32) {
	check := func(path, temporary string) error {
		tctx, cancel := context.WithTimeout(ctx, intentTimeout)
		defer cancel()
		request := &droverv1.CheckOutputRequest{Path: path, Temporary: temporary}
		_, err := n.c.dispatcher.callNode(tctx, &droverv1.NodeRequest{User: user, Operation: &droverv1.NodeRequest_CheckOutput{CheckOutput: request}}, uriScheme(output), node)
		return err
	}
	if !errors.Is(check(output, temporary), fault.Exists) || check(temporary, "") != nil {
		return
	}
	stop := &droverv1.JobStopFact{Job: job, Reason: publishedText, AfterCommit: true}
	n.proposeOutcome(ctx, &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: stop}})
}

// cleanOutput removes a job's temporary folder through a node. If that fails permanently, the
// folder remains, an error is logged, and the output path is free nevertheless.
func (n *intents) cleanOutput(ctx context.Context, job uint64, output string, request *droverv1.NodeRequest) {
	if err := n.requestWithRetry(ctx, output, request); err != nil && ctx.Err() == nil {
		n.c.log.Warn("cannot remove a job's temporary folder", "job", job, "path", request.GetDeletePath().GetPath(), "err", err)
	}
	n.proposeOutcome(ctx, &droverv1.Entry{Body: &droverv1.Entry_JobCleaned{JobCleaned: &droverv1.JobCleanedFact{Job: job}}})
}

// proposeOutcome proposes the outcome of an intent until it is in the log or the term ends. The
// next leader then executes the intent again. Nothing else would propose the outcome, so an
// overload or a slow disk must not lose it. The log refuses it in a later term, whose leader has
// started the intent anew.
func (n *intents) proposeOutcome(ctx context.Context, e *droverv1.Entry) {
	for pause := intentPause; ctx.Err() == nil; pause = min(2*pause, maxIntentPause) {
		next := proto.CloneOf(e) // Propose takes it
		next.Actor, next.Term = actorSelf, n.term
		_, err := n.c.replica.Propose(ctx, next)
		if err == nil || ctx.Err() != nil {
			return
		}
		n.c.log.Warn("cannot record the outcome of an intent; it is tried again", "err", err)
		if !sleep.For(ctx, pause) {
			return
		}
	}
}

// requestWithRetry has a node perform a request. While the node or the file system is unavailable
// it tries again, at most maxIntentTries times. A request that was not sent because too many are
// pending does not count as a try: it says nothing about the job.
func (n *intents) requestWithRetry(ctx context.Context, output string, request *droverv1.NodeRequest) error {
	pause := intentPause
	for tries := 0; ; {
		tctx, cancel := context.WithTimeout(ctx, intentTimeout)
		_, err := n.c.dispatcher.call(tctx, request, uriScheme(output), nil)
		cancel()
		if !errors.Is(err, fault.Overloaded) {
			tries++
		}
		if !passesByItself(err) || tries >= maxIntentTries || ctx.Err() != nil {
			return err
		}
		if !sleep.For(ctx, pause) {
			return ctx.Err()
		}
		pause = min(2*pause, maxIntentPause)
	}
}

// passesByItself reports whether a request to a node that failed with err may succeed later.
func passesByItself(err error) bool {
	return errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Overloaded)
}
