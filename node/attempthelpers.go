package node

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// helperState is the state of one helper of an attempt, owned by its loop.
type helperState struct {
	work     task.Work
	failure  *failure // set when work is WorkFailed
	progress helper.Event
	tries    int
	began    time.Duration // monotonic time of the last start
	took     time.Duration // of its starts that have ended
	cancel   context.CancelFunc
	done     chan struct{}      // closed when the helper has ended
	updates  chan helper.Update // capacity 1: the newest update
}

// sendUpdate passes the newest state of the map outputs to the helper, replacing
// one that it has not received yet.
func (h *helperState) sendUpdate(u helper.Update) {
	if h.updates == nil {
		return
	}
	select {
	case <-h.updates:
	default:
	}
	h.updates <- u // does not block: only the loop sends
}

// elapsed returns how long the helper has worked, over all its starts. The time before a restart of
// the daemon is unknown and left out.
func (h *helperState) elapsed(now time.Duration) time.Duration {
	if h.work != task.WorkBusy {
		return h.took
	}
	return h.took + now - h.began
}

// finish records how the helper ended, and reports whether it failed. ended maps the error of the
// last try to a failure.
func (h *helperState) finish(now time.Duration, err error, ended func(error) *failure) (failed bool) {
	if h.work != task.WorkBusy {
		return false // stopped in the meantime
	}
	h.took = h.elapsed(now)
	h.updates = nil
	if err == nil {
		h.work = task.WorkDone
		return false
	}
	h.tries++
	if helper.IsRetryable(err) && h.tries < maxHelperTries {
		h.work = task.WorkIdle
		return true
	}
	h.work, h.failure = task.WorkFailed, ended(err)
	return true
}

// attemptHelpers owns the two helpers of an attempt: one fetches its input, the other uploads its
// output. The attempt's loop owns it. The helpers post their reports to the loop by mail, and end
// with the context of that loop.
type attemptHelpers struct {
	fetch  helperState
	upload helperState
	strays bool            // helpers of an earlier daemon may be alive: they must be gone before one starts
	sent   helper.Update   // last update sent to the shuffle helper
	ctx    context.Context // of the loop; helpers live in it, not in a step's context
	wg     sync.WaitGroup  // of the helpers' goroutines

	id      store.ID
	dir     folder
	cfg     *Config
	runner  *helperRunner
	sockets *sockets
	mail    *mailbox
	clock   clock
	log     *slog.Logger
}

// isBusy reports whether a helper is at work.
func (x *attemptHelpers) isBusy() bool {
	return x.fetch.work == task.WorkBusy || x.upload.work == task.WorkBusy
}

// isLostToAll reports whether the error of a split's fetch would hit every other attempt too: a
// file is shorter than before, or gone. A file:// path may be missing on this node alone, where a
// file system is not mounted.
func isLostToAll(err error, pieces []mapreduce.Piece) bool {
	local := slices.ContainsFunc(pieces, func(p mapreduce.Piece) bool { return strings.HasPrefix(p.Path, "file:") })
	return errors.Is(err, fault.Invalid) || errors.Is(err, fault.NotFound) && !local
}

// startFetch starts the helper that fetches the input. If that fails, it calls failed in the loop.
// Paths are host paths, since the helper runs outside the container.
func (x *attemptHelpers) startFetch(spec *droverv1.TaskSpec, wanted *droverv1.WantedAttempt, failed func(*failure)) error {
	req := &helper.Request{}
	if spec.GetKind() == kindMap {
		pieces, err := piecesOf(spec)
		if err != nil {
			return err
		}
		for i := range pieces { // not in the harness's spec: an older harness refuses fields that it does not know
			pieces[i].FileLength = spec.GetSplit()[i].GetFileLength()
		}
		req.Fetch = &helper.Fetch{Pieces: pieces, File: x.dir.metaPath(filepath.Join(nameIn, nameSplit))}
	} else {
		req.Shuffle = &helper.Shuffle{
			Job: x.id.Key().GetJob(), Partition: int(x.id.Key().GetTask()), Maps: int(spec.GetMapTasks()),
			Dir: x.dir.metaPath(nameIn), Journal: x.dir.metaPath(filepath.Join(nameIn, nameSegments)),
			Token: spec.GetShuffleToken(), CA: x.cfg.shuffleCA, Update: x.update(wanted),
		}
		x.sent = req.Shuffle.Update
	}
	return x.start(&x.fetch, spec, req, func(err error) *failure {
		v := fetchFailure(req, err)
		failed(v)
		return v
	})
}

// fetchFailure returns the failure of a fetch or shuffle that ended with err. If this node cannot
// reach the map outputs of others, the failure counts against this node, and the reduce task is
// started elsewhere.
func fetchFailure(req *helper.Request, err error) *failure {
	v := &failure{cause: droverv1.Cause_CAUSE_INPUT, message: "cannot read the task's input: " + err.Error()}
	switch {
	case req.Fetch != nil && isLostToAll(err, req.Fetch.Pieces):
		v.cause = droverv1.Cause_CAUSE_DATA
		v.message += "; submit the job again, with the input as it is now"
	case req.Shuffle != nil && errors.Is(err, fault.Exhausted):
		v.cause = droverv1.Cause_CAUSE_INFRA
	}
	return v
}

// update returns the known map outputs, with addresses that helpers of this node can reach.
func (x *attemptHelpers) update(w *droverv1.WantedAttempt) helper.Update {
	u := helper.Update{}
	for _, o := range w.GetMapOutputs() {
		u.Outputs = append(u.Outputs, helper.MapOutput{Stage: o.GetStage(), Task: o.GetTask(), Attempt: o.GetAttempt(), Run: o.GetRun(), Address: x.sockets.helperAddress(o.GetAddress())})
	}
	return u
}

// updateFetch sends the shuffle helper a changed set of map outputs.
func (x *attemptHelpers) updateFetch(w *droverv1.WantedAttempt) {
	if x.fetch.updates == nil || w == nil {
		return
	}
	if u := x.update(w); !slices.Equal(u.Outputs, x.sent.Outputs) {
		x.sent = u
		x.fetch.sendUpdate(u)
	}
}

// startUpload starts the helper that uploads the result to the output path.
func (x *attemptHelpers) startUpload(spec *droverv1.TaskSpec, output *mapreduce.StoredFile) error {
	if output == nil {
		return fault.New(fault.Invalid, "the task wrote no output file")
	}
	req := &helper.Request{Upload: &helper.Upload{
		Root: x.dir.task(), Name: x.dir.outputName(namePart), URI: spec.GetOutput(), Replication: int(spec.GetReplication()),
		Bytes: output.Bytes, CRC32C: output.CRC32C,
	}}
	return x.start(&x.upload, spec, req, uploadFailure)
}

// uploadFailure returns the failure of an upload that ended with err. A refusal by the file system
// is the user's: the user chooses the output path and may change it meanwhile (a folder in place of
// a file, an encrypted folder, a quota). It must not count against the node, which would be
// quarantined for failures of the infrastructure.
func uploadFailure(err error) *failure {
	f := &failure{cause: droverv1.Cause_CAUSE_OUTPUT, message: "cannot write the task's output: " + err.Error()}
	if helper.IsRetryable(err) {
		f.cause = droverv1.Cause_CAUSE_INFRA
	}
	return f
}

// start runs a helper in a goroutine. ended maps its error to a failure.
func (x *attemptHelpers) start(h *helperState, spec *droverv1.TaskSpec, req *helper.Request, ended func(error) *failure) error {
	uid, err := x.cfg.taskUID(spec)
	if err != nil {
		return err
	}
	if x.strays {
		if err := x.runner.enforcer.KillHelpers(x.ctx, x.id.String()); err != nil {
			return err
		}
		x.strays = false
	}
	req.Version, req.Files, req.User = helper.Version, x.cfg.FilesConfig, spec.GetHdfsUser()
	ctx, cancel := context.WithCancel(x.ctx)
	done, updates := make(chan struct{}), make(chan helper.Update, 1)
	h.work, h.cancel, h.done, h.updates, h.began = task.WorkBusy, cancel, done, updates, x.clock.Monotonic()
	post := func(f func()) { // to the loop, unless h has been replaced since
		x.mail.post(ctx, func() {
			if h.done == done {
				f()
			}
		})
	}
	emit := func(e helper.Event) { post(func() { h.progress = e }) }
	x.wg.Go(func() {
		err := x.runner.run(ctx, x.id.String(), uid, req, updates, emit)
		close(done)
		post(func() {
			cancel()
			if h.finish(x.clock.Monotonic(), err, ended) {
				x.log.Warn("helper failed", "attempt", x.id, "try", h.tries, "err", err)
			}
		})
	})
	return nil
}

// stop stops both helpers and waits for them.
func (x *attemptHelpers) stop(ctx context.Context) error {
	for _, h := range []*helperState{&x.fetch, &x.upload} {
		if h.work != task.WorkBusy {
			continue
		}
		h.cancel()
		select {
		case <-h.done:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "helper does not stop: %w", ctx.Err())
		}
		h.took = h.elapsed(x.clock.Monotonic())
		h.work, h.updates = task.WorkIdle, nil
	}
	return nil
}
