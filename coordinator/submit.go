package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of submissions.
const (
	maxSpec       = 512 << 10            // bytes of canonical JSON
	maxKey        = 64                   // bytes of an idempotency key
	chunkBytes    = replica.MaxEntry / 2 // of splits in one entry
	maxRates      = 10_000               // identities whose rate is remembered
	maxProblems   = 5                    // shown of a job that is wrong
	acceptedSpace = 16 << 10             // of an accept besides spec and splits
)

// rates bounds the submissions of each identity.
type rates struct {
	perS float64

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newRates(perS float64) *rates { return &rates{perS: perS, of: map[string]*rate.Limiter{}} }

func (r *rates) allow(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[name]
	if l == nil {
		if len(r.of) >= maxRates {
			clear(r.of)
		}
		l = rate.NewLimiter(rate.Limit(r.perS), int(10*r.perS)+1)
		r.of[name] = l
	}
	return l.Allow()
}

// SubmitJob accepts a job or refuses it with one clear line:
//
//  1. Who asks, how often, and what: rights, rate, spec, defaults, validity.
//  2. What the facts say: idempotency key, tenant, live name, held output,
//     files of the store, a demand that no node can meet.
//  3. What the file systems say, through nodes: the output path is free, the
//     input is there; its blocks become splits.
//  4. How long its stages will run, and with a deadline the quote: when it
//     would end. One that is weaker than what the caller demands is refused.
//  5. The folder for unfinished output is made, which shows that the tenant
//     may write there.
//  6. The accept: durable before the answer; Apply asks step 2 again.
func (s *clientService) SubmitJob(ctx context.Context, req *connect.Request[droverv1.SubmitJobRequest]) (*connect.Response[droverv1.SubmitJobResponse], error) {
	id := caller(ctx)
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	if !s.rates.allow(id.name) {
		return nil, fault.New(fault.Exhausted, "%s submits more than %g jobs a second: try again in a second", id.who(), s.cfg.SubmitRate)
	}
	key := req.Msg.GetIdempotencyKey()
	if len(key) > maxKey {
		return nil, fault.New(fault.Invalid, "an idempotency key has at most %d bytes, not %d", maxKey, len(key))
	}
	if key != "" {
		key = id.name + " " + key // another caller's key is another key
	}
	if p := req.Msg.GetRequireQuote(); !(p >= 0 && p <= 1) {
		return nil, fault.New(fault.Invalid, "the required quote is %g: it is a probability, 0 to 1", p)
	}
	spec, err := decodeSpec(req.Msg.GetSpec())
	if err != nil {
		return nil, err
	}
	if prior := s.byKey(key); prior != nil {
		return connect.NewResponse(prior), nil
	}
	leave, err := s.claim(spec.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	warnings, err := s.admit(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := s.askFiles(ctx, spec)
	if err != nil {
		return nil, err
	}
	says, more, err := s.quoteFor(ctx, spec, in, req.Msg.GetRequireQuote())
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, more...)
	tag, err := s.prepareOutput(ctx, spec)
	if err != nil {
		return nil, err
	}
	res, err := s.accept(ctx, id, spec, key, tag, in, says)
	if err != nil {
		return nil, err // it may have been accepted all the same: its folder stays
	}
	if res.Err != nil || res.Changed == 0 { // refused, or accepted before under this key
		s.dropOutput(ctx, spec, tag)
	}
	if res.Err != nil {
		return nil, res.Err
	}
	return connect.NewResponse(&droverv1.SubmitJobResponse{Job: res.Job, Name: res.Name, Warnings: warnings, Quote: says.quote}), nil
}

// decodeSpec reads, completes and judges a job, and puts its stages into an
// order in which each comes after those it waits for.
func decodeSpec(text string) (*jobspec.Job, error) {
	if len(text) > maxSpec {
		return nil, fault.New(fault.Exhausted, "the job's description has %d KiB, at most %d are allowed: put data into files", len(text)>>10, maxSpec>>10)
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
	spec.Stages = inOrder(spec.Stages)
	return spec, nil
}

// inOrder sorts stages so that each follows what it waits for, else as they
// were. Validate has excluded circles.
func inOrder(stages []jobspec.Stage) []jobspec.Stage {
	var out []jobspec.Stage
	placed := map[string]bool{}
	hasMap := slices.ContainsFunc(stages, func(s jobspec.Stage) bool { return s.Kind == jobspec.KindMap })
	mapDone := !hasMap
	for len(out) < len(stages) {
		before := len(out)
		for _, s := range stages {
			waits := slices.ContainsFunc(s.After, func(a string) bool { return !placed[a] }) || (s.Kind == jobspec.KindReduce && !mapDone)
			if placed[s.Name] || waits {
				continue
			}
			placed[s.Name] = true
			mapDone = mapDone || s.Kind == jobspec.KindMap
			out = append(out, s)
		}
		if len(out) == before {
			return stages // a circle through the reduce stage: Apply's stageOpen never opens it, admit refuses it
		}
	}
	return out
}

// claim keeps two submissions of one name from asking the file system at the
// same time: the second is told at once.
func (s *clientService) claim(name string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.names[name]; busy {
		return nil, fault.New(fault.Conflict, "job %q is being submitted by somebody else: choose another name", name)
	}
	s.names[name] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.names, name)
	}, nil
}

func (s *clientService) byKey(key string) (res *droverv1.SubmitJobResponse) {
	if key == "" {
		return nil
	}
	s.view(func(f *facts.Facts) {
		if id, name, ok := f.ByKey(key); ok {
			res = &droverv1.SubmitJobResponse{Job: id, Name: name}
		}
	})
	return res
}

// admit is step 2; it also checks the rights, since the tenant is in the spec.
func (s *clientService) admit(ctx context.Context, spec *jobspec.Job) (warnings []string, err error) {
	if err := s.allowImage(spec.Image); err != nil {
		return nil, err
	}
	output := ""
	if spec.Output != nil {
		output = strings.TrimRight(spec.Output.Path, "/")
		spec.Output.Path = output
	}
	s.view(func(f *facts.Facts) {
		t := f.Tenant(spec.Tenant)
		if err = f.CheckAccept(spec, output, max(s.now().UnixNano(), f.At())); err == nil {
			err = s.need(ctx, maySubmit, t.Spec)
		}
		if err == nil {
			warnings, err = fits(f, spec)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, d := range facts.Digests(spec) {
		s.touch(d)
		if _, ok := s.blobs.Has(d); !ok {
			return nil, fault.New(fault.NotFound, "%s is not in the store: upload it first (drover job run does)", d)
		}
	}
	return warnings, nil
}

// allowImage refuses pulled images and host folders that no operator allowed.
func (s *clientService) allowImage(im *jobspec.Image) error {
	if im == nil {
		return nil
	}
	if im.Kind == jobspec.ImageOCIArchive {
		if im.Digest == "" {
			return fault.New(fault.Invalid, "image %q has no digest: upload it first (drover job run does)", im.Source)
		}
		return nil
	}
	name := string(im.Kind) + ":" + im.Source
	if slices.ContainsFunc(s.cfg.AllowImages, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return nil
	}
	return fault.New(fault.Denied, "image %s is not on the operator's list of allowed images: use an oci-archive, or ask for it", name)
}

// fits refuses a demand that no node can ever meet.
func fits(f *facts.Facts, spec *jobspec.Job) (warnings []string, err error) {
	if len(f.Nodes()) == 0 {
		return []string{"no node has registered yet: the job waits for the first one"}, nil
	}
	for i := range spec.Stages {
		s := &spec.Stages[i]
		best, ok := "", false
		for _, n := range f.Nodes() {
			a := n.Info.GetAllocatable()
			need := facts.Amounts{CPU: s.Resources.CPU, Memory: s.Resources.Memory + n.Info.GetTaskOverheadMemory(), IO: s.Resources.IO}
			if need.CPU <= a.GetCpu() && need.Memory <= a.GetMemory() && diskFits(n.Info, need.IO, s.Disk) {
				ok = true
				break
			}
			best = facts.AmountsOf(a).String() + " (" + n.Info.GetName() + ")"
		}
		if !ok {
			want := facts.Amounts{CPU: s.Resources.CPU, Memory: s.Resources.Memory, IO: s.Resources.IO}
			return nil, fault.New(fault.Exhausted, "stage %q: no node can run a task of %s and %s of disk; for example this one has %s: ask for less", s.Name, want, jobspec.FormatSize(s.Disk), best)
		}
	}
	return nil, nil
}

// diskFits tells whether one disk of the node has that I/O and space at all.
func diskFits(n *droverv1.NodeInfo, io, space int64) bool {
	return slices.ContainsFunc(n.GetDisks(), func(d *droverv1.Disk) bool { return io <= d.GetIo() && space <= d.GetSpace() })
}

// askFiles is step 3.
func (s *clientService) askFiles(ctx context.Context, spec *jobspec.Job) (*located, error) {
	user := s.userOf(spec)
	if spec.Input != nil {
		if err := s.reachable("input", spec.Input.Paths[0]); err != nil {
			return nil, err
		}
	}
	if spec.Output != nil {
		if err := s.reachable("output", spec.Output.Path); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LocateLimit)
	defer cancel()
	if out := spec.Output; out != nil {
		o := &droverv1.Order{User: user, What: &droverv1.Order_CheckOutput{CheckOutput: &droverv1.CheckOutputOrder{Path: out.Path}}}
		said, err := s.askSaying(func(say func(string)) error {
			_, err := s.orders.ask(ctx, o, scheme(out.Path), 0, say)
			return err
		})
		if err != nil {
			return nil, fileError("output", out.Path, said, err)
		}
	}
	if spec.Input == nil {
		return &located{}, nil
	}
	var in *located
	said, err := s.askSaying(func(say func(string)) (err error) {
		in, err = s.locate(ctx, spec.Input, user, false, say)
		return err
	})
	if err != nil {
		return nil, fileError("input", strings.Join(spec.Input.Paths, ", "), said, err)
	}
	return in, nil
}

// reachable refuses at once a file that none of the nodes, down ones included,
// could ever bring; a cluster without nodes waits for its first.
func (s *clientService) reachable(what, path string) error {
	sch, known, some := scheme(path), 0, false
	s.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			known++
			some = some || contains(n.Info.GetSchemes(), sch)
		}
	})
	if known == 0 || some {
		return nil
	}
	cure := "name an HDFS path"
	switch sch {
	case "hdfs":
		cure = "start node daemons, or drover dev, with -namenode HOST:PORT"
	case "file":
		cure = "name an HDFS path, or start node daemons with -local-files"
	}
	return fault.New(fault.Unsupported, "%s %s: no node of this cluster reaches %s:// files: %s", what, path, sch, cure)
}

// userOf is the HDFS user of the job's tenant.
func (s *clientService) userOf(spec *jobspec.Job) (user string) {
	s.view(func(f *facts.Facts) { user = hdfsUser(f, spec) })
	return user
}

// prepareOutput is step 5; the tag names the folder it made, "" for none.
func (s *clientService) prepareOutput(ctx context.Context, spec *jobspec.Job) (string, error) {
	out := spec.Output
	if out == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LocateLimit)
	defer cancel()
	tag := s.newID()
	o := &droverv1.Order{User: s.userOf(spec), What: &droverv1.Order_CheckOutput{CheckOutput: &droverv1.CheckOutputOrder{
		Path: out.Path, Prepare: true, Temporary: facts.Temporary(out.Path, tag)}}}
	said, err := s.askSaying(func(say func(string)) error {
		_, err := s.orders.ask(ctx, o, scheme(out.Path), 0, say)
		return err
	})
	if err != nil {
		return "", fileError("output", out.Path, said, err)
	}
	return tag, nil
}

// dropLimit bounds the removal of a folder that no accepted job has.
const dropLimit = 10 * time.Second

// dropOutput removes the folder of a job that Apply refused. Where that
// fails an empty folder stays, which the log names.
func (s *clientService) dropOutput(ctx context.Context, spec *jobspec.Job, tag string) {
	if tag == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dropLimit)
	defer cancel()
	path := facts.Temporary(spec.Output.Path, tag)
	o := &droverv1.Order{User: s.userOf(spec), What: &droverv1.Order_DeletePath{DeletePath: &droverv1.DeletePathOrder{Path: path}}}
	if _, err := s.orders.ask(ctx, o, scheme(path), 0, func(string) {}); err != nil {
		s.log.Warn("an empty folder of a refused job stays", "path", path, "err", err)
	}
}

// askSaying gives the last progress that was heard, for the error's text.
func (s *clientService) askSaying(ask func(func(string)) error) (string, error) {
	var mu sync.Mutex
	said := ""
	err := ask(func(p string) {
		mu.Lock()
		defer mu.Unlock()
		said = p
		s.log.Debug("a submission waits", "for", p)
	})
	mu.Lock()
	defer mu.Unlock()
	return said, err
}

// fileError makes one clear line of a file system's no.
func fileError(what, path, said string, err error) error {
	class := fault.Class(err)
	if class == nil {
		class = fault.Unavailable
	}
	text := err.Error()
	if said != "" && errors.Is(err, fault.Unavailable) {
		text += " (" + said + ")"
	}
	switch {
	case strings.HasPrefix(text, what):
		return fault.New(class, "%s", text)
	case strings.HasPrefix(text, path):
		return fault.New(class, "%s %s", what, text)
	default:
		return fault.New(class, "%s %s: %s", what, path, text)
	}
}

// accept is step 6; the result's Err says that the facts refused it. Splits that are too many for one entry are staged in
// chunks first.
func (s *clientService) accept(ctx context.Context, id identity, spec *jobspec.Job, key, tag string, in *located, says forecast) (facts.Result, error) {
	text, err := jobspec.Encode(spec)
	if err != nil {
		return facts.Result{}, err
	}
	a := &droverv1.JobAcceptedFact{Spec: string(text), IdempotencyKey: key, ShuffleToken: s.newID() + s.newID(), TemporaryTag: tag,
		Estimates: says.estimates, Quote: says.quote}
	if spec.Output != nil {
		a.OutputHeld = spec.Output.Path
	}
	chunks := cut(in.splits, chunkBytes)
	inline := &droverv1.JobChunkFact{Splits: in.splits}
	if len(chunks) <= 1 && len(text)+proto.Size(inline)+acceptedSpace <= replica.MaxEntry {
		a.Splits = in.splits
	} else {
		a.Staging, a.Chunks = s.newID(), int32(len(chunks))
		for i, part := range chunks {
			e := &droverv1.Entry{Body: &droverv1.Entry_JobChunk{JobChunk: &droverv1.JobChunkFact{Staging: a.Staging, Index: int32(i), Splits: part}}}
			if res, err := s.propose(ctx, id.name, e); err != nil || res.Err != nil {
				return res, err
			}
		}
	}
	if in.hosts != nil {
		s.hosts.put(a.ShuffleToken, in.hosts)
	}
	return s.propose(ctx, id.name, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: a}})
}

// cut divides splits into parts of at most n bytes each, or one split.
func cut(splits []*droverv1.FactSplit, n int) [][]*droverv1.FactSplit {
	var out [][]*droverv1.FactSplit
	size := n + 1
	for _, s := range splits {
		b := proto.Size(s) + 8
		if size += b; size > n {
			out, size = append(out, nil), b
		}
		out[len(out)-1] = append(out[len(out)-1], s)
	}
	return out
}
