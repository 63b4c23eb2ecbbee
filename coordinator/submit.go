package coordinator

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of submissions.
const (
	maxKey         = 64                   // bytes of an idempotency key
	chunkBytes     = replica.MaxEntry / 2 // bytes of splits in one entry
	maxProblems    = 5                    // shown for an invalid job
	acceptOverhead = 16 << 10             // bytes of an entry besides spec and splits
)

// SubmitJob accepts a job or refuses it with a one-line error:
//
//  1. Check the caller and the job: rights, rate, spec, defaults, validity.
//  2. Check the facts: idempotency key, tenant, live name, reserved output, blobs,
//     a demand that no node can meet.
//  3. Check the file systems, through nodes: the output path is free, the input
//     exists; its blocks become splits.
//  4. Predict the run times of the stages and, with a deadline, make a quote. One
//     that is weaker than the caller requires is refused.
//  5. Create the folder for unfinished output, which proves that the tenant may
//     write there.
//  6. Propose the job, which is durable before the response; Apply repeats step 2.
func (s *clientService) SubmitJob(ctx context.Context, req *connect.Request[droverv1.SubmitJobRequest]) (*connect.Response[droverv1.SubmitJobResponse], error) {
	id, began := caller(ctx), s.core.now()
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if err := s.core.disk.requireSpace(0); err != nil {
		return nil, err
	}
	if !s.rates.allow(id.name) {
		return nil, fault.Overload("%s submits more than %g jobs a second: try again in a second", id.displayName(), s.core.cfg.SubmitRate)
	}
	key := req.Msg.GetIdempotencyKey()
	if len(key) > maxKey {
		return nil, fault.New(fault.Invalid, "an idempotency key has at most %d bytes, not %d", maxKey, len(key))
	}
	if key != "" {
		key = id.name + " " + key // keys are per caller
	}
	if p := req.Msg.GetRequireQuote(); !(p >= 0 && p <= 1) {
		return nil, fault.New(fault.Invalid, "the required quote is %g: it is a probability, 0 to 1", p)
	}
	spec, err := decodeSpec(req.Msg.GetSpec())
	if err != nil {
		return nil, err
	}
	if prior := s.submissions.prior(key); prior != nil {
		if err := checkSameJob(spec, prior.Job, prior.Name); err != nil {
			return nil, err
		}
		return connect.NewResponse(prior), nil
	}
	if err := s.core.rights.needTenant(ctx, maySubmit, spec.Tenant); err != nil {
		return nil, err
	}
	if err := requireUploads(spec); err != nil {
		return nil, err
	}
	leave, err := s.core.submitting.claim(spec.Tenant, spec.Name, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	warnings, err := s.submissions.admit(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := s.submissions.checkFiles(ctx, spec)
	if err != nil {
		return nil, err
	}
	forecast, more, err := s.makeQuote(ctx, spec, in, req.Msg.GetRequireQuote())
	if err != nil {
		return nil, err
	}
	warnings = append(append(warnings, smallFilesWarning(spec, in)...), more...)
	tag, err := s.submissions.prepareOutput(ctx, spec, key)
	if err != nil {
		return nil, err
	}
	res, err := s.submissions.propose(ctx, id, spec, key, tag, in, forecast)
	if err != nil {
		return nil, err // the job may have been accepted nevertheless: keep its folder
	}
	if res.Err != nil || res.Changed == 0 { // refused, or accepted before under this key
		s.submissions.removeOutputFolder(ctx, spec, tag, res.Job)
	}
	if err := cmp.Or(res.Err, checkSameJob(spec, res.Job, res.Name)); err != nil {
		return nil, err
	}
	s.core.tracing.submitted(res.Job, began)
	return connect.NewResponse(&droverv1.SubmitJobResponse{Job: res.Job, Name: res.Name, Warnings: warnings, Quote: forecast.quote, AcceptedBy: forecast.acceptedBy}), nil
}

// decodeSpec decodes, completes and validates a job, and sorts its stages
// topologically.
func decodeSpec(text string) (*jobspec.Job, error) {
	if len(text) > jobspec.MaxBytes {
		return nil, fault.New(fault.Exhausted, "the job's description has %d KiB, at most %d are allowed: put data into files", len(text)>>10, jobspec.MaxBytes>>10)
	}
	spec, err := jobspec.Decode([]byte(text))
	if err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	jobspec.SetDefaults(spec)
	if problems := jobspec.Validate(spec); len(problems) > 0 {
		var lines []string
		for _, p := range problems[:min(len(problems), maxProblems)] {
			lines = append(lines, p.String())
		}
		return nil, fault.New(fault.Invalid, "job %q: %s", spec.Name, strings.Join(lines, "; "))
	}
	for i := range spec.Stages {
		if s := &spec.Stages[i]; s.PartitionFile != "" {
			return nil, fault.New(fault.Invalid, "job %q: stage[%q].partition_file: %q is a file of its author, which nobody has read: drover job run does; give its lines as partition_keys", spec.Name, s.Name, s.PartitionFile)
		}
	}
	spec.Stages = sortStages(spec)
	return spec, nil
}

// sortStages returns the stages of a job in topological order; stages that do not depend on each
// other keep their order where possible. Validate has excluded cycles.
func sortStages(j *jobspec.Job) []jobspec.Stage {
	var out []jobspec.Stage
	before := make([][]int32, len(j.Stages))
	for i := range j.Stages {
		before[i] = j.StagesBefore(i)
	}
	placed := make([]bool, len(j.Stages))
	waits := func(k int32) bool { return !placed[k] }
	for len(out) < len(j.Stages) {
		n := len(out)
		for i := range j.Stages {
			if placed[i] || slices.ContainsFunc(before[i], waits) {
				continue
			}
			placed[i] = true
			out = append(out, j.Stages[i])
		}
		if len(out) == n {
			return j.Stages // a cycle, which Validate excludes: admit refuses the job because the stage never opens
		}
	}
	return out
}

// submitter performs the steps of a submission.
type submitter struct{ core *core }

// nameClaims are the jobs whose submissions are in progress, as tenant/name, with their idempotency
// keys.
type nameClaims struct {
	mu   sync.Mutex
	keys map[string]string
}

// claim prevents concurrent submissions of one name in a tenant: the second one fails at once. One
// with the same key is a retry whose first call is still running, because its caller was
// disconnected without notice: it is told to try again, and then gets the first call's response.
func (c *nameClaims) claim(tenant, short, key string) (leave func(), err error) {
	name := tenant + "/" + short
	c.mu.Lock()
	defer c.mu.Unlock()
	switch other, busy := c.keys[name]; {
	case busy && key != "" && key == other:
		return nil, fault.Overload("job %q is still being submitted by an earlier call with its idempotency key: try again in a second", short)
	case busy:
		return nil, fault.New(fault.Conflict, "job %q is being submitted by another caller: choose another name", short)
	}
	c.keys[name] = key
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.keys, name)
	}, nil
}

// prior returns the response to an earlier submission with this idempotency key,
// nil for none.
func (s *submitter) prior(key string) (res *droverv1.SubmitJobResponse) {
	if key == "" {
		return nil
	}
	s.core.view(func(f *facts.Facts) {
		if id, name, ok := f.JobByIdempotencyKey(key); ok {
			res = &droverv1.SubmitJobResponse{Job: id, Name: name}
		}
	})
	return res
}

// checkSameJob returns an error if an idempotency key belongs to a job of another name.
func checkSameJob(spec *jobspec.Job, id uint64, name string) error {
	if name == spec.Name {
		return nil
	}
	return fault.New(fault.Conflict, "the idempotency key of job %q belongs to job %d (%s), and only a submission of the same job may have it: give each job its own key", spec.Name, id, name)
}

// propose is step 6. The result's Err says that the facts refused the job.
// Splits that do not fit into one entry are first staged in chunks.
func (s *submitter) propose(ctx context.Context, id identity, spec *jobspec.Job, key, tag string, in *located, forecast jobForecast) (res facts.Result, err error) {
	text, err := jobspec.Encode(spec)
	if err != nil {
		return facts.Result{}, err
	}
	a := &droverv1.JobAcceptedFact{Spec: string(text), IdempotencyKey: key, ShuffleToken: s.core.newID() + s.core.newID(), TemporaryTag: tag,
		Estimates: forecast.estimates, Quote: forecast.quote}
	if spec.Output != nil {
		a.Output = spec.Output.Path
	}
	chunks := splitIntoChunks(in.splits, chunkBytes)
	inline := &droverv1.JobChunkFact{Splits: in.splits}
	if len(chunks) <= 1 && len(text)+proto.Size(inline)+acceptOverhead <= replica.MaxEntry {
		a.Splits = in.splits
	} else {
		a.Staging, a.Chunks = s.core.newID(), int32(len(chunks))
		defer func() {
			if err != nil || res.Changed == 0 {
				s.dropStaging(ctx, id, a.Staging)
			}
		}()
		if res, err = s.stage(ctx, id, a.Staging, chunks); err != nil || res.Err != nil {
			return res, err
		}
	}
	if in.hosts != nil {
		s.core.locations.addPending(a.ShuffleToken, in.hosts)
	}
	return s.core.propose(ctx, id.name, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: a}})
}

// stage proposes the splits of a large job.
func (s *submitter) stage(ctx context.Context, id identity, staging string, chunks [][]*droverv1.FactSplit) (res facts.Result, err error) {
	for i, part := range chunks {
		e := &droverv1.Entry{Body: &droverv1.Entry_JobChunk{JobChunk: &droverv1.JobChunkFact{Staging: staging, Index: int32(i), Splits: part}}}
		if res, err = s.core.propose(ctx, id.name, e); err != nil || res.Err != nil {
			return res, err
		}
	}
	return res, nil
}

// dropStagingLimit bounds the removal of a staged submission.
const dropStagingLimit = 5 * time.Second

// dropStaging removes the splits of a submission that failed: they may be a hundred megabytes. If
// that fails too, they stay until other large submissions replace them.
func (s *submitter) dropStaging(ctx context.Context, id identity, staging string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropStagingLimit)
	defer cancel()
	e := &droverv1.Entry{Body: &droverv1.Entry_JobChunk{JobChunk: &droverv1.JobChunkFact{Staging: staging, Dropped: true}}}
	if _, err := s.core.propose(ctx, id.name, e); err != nil {
		s.core.log.Warn("the parts of a large submission that broke off stay for a while", "err", err)
	}
}

// splitIntoChunks divides messages into parts of at most n bytes each, or one
// message.
func splitIntoChunks[M proto.Message](list []M, n int) [][]M {
	var out [][]M
	size := n + 1
	for _, m := range list {
		b := proto.Size(m) + 8
		if size += b; size > n {
			out, size = append(out, nil), b
		}
		out[len(out)-1] = append(out[len(out)-1], m)
	}
	return out
}
