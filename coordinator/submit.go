package coordinator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
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
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/scheduler"
)

// Limits of submissions.
const (
	maxKey         = 64                   // bytes of an idempotency key
	chunkBytes     = replica.MaxEntry / 2 // bytes of splits in one entry
	maxRates       = 10_000               // identities whose rate is tracked
	maxProblems    = 5                    // shown for an invalid job
	acceptOverhead = 16 << 10             // bytes of an entry besides spec and splits
)

// rates limits how often each identity does something.
type rates struct {
	perS float64

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newRates(perS float64) *rates { return &rates{perS: perS, of: map[string]*rate.Limiter{}} }

func (r *rates) allow(name string) bool { return r.limiter(name).Allow() }

// reserve returns for how long something of a name has to wait, and reserves that place unless it is longer
// than most.
func (r *rates) reserve(name string, most time.Duration) (wait time.Duration, ok bool) {
	place := r.limiter(name).Reserve()
	if wait = place.Delay(); wait > most {
		place.Cancel()
		return 0, false
	}
	return wait, true
}

func (r *rates) limiter(name string) *rate.Limiter {
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
	return l
}

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
		return nil, err // it may have been accepted nevertheless: keep its folder
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

// sortStages returns the stages of a job in topological order, which keeps theirs where possible.
// Validate has excluded cycles.
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
			return j.Stages // a cycle, which Validate excludes: stageOpen never opens it, admit refuses it
		}
	}
	return out
}

// submitter does the steps of a submission.
type submitter struct{ core *core }

// nameClaims are the jobs that are being submitted, as tenant/name, with their idempotency keys.
type nameClaims struct {
	mu   sync.Mutex
	keys map[string]string
}

// claim prevents concurrent submissions of one name of a tenant: the second fails at once. One under the same key is the
// same submission, whose first call broke off without notice: it is asked to come again, and then gets the first one's answer.
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

// checkSameJob returns an error if a submission got the number of a job with another name: its idempotency key was used
// for that job.
func checkSameJob(spec *jobspec.Job, id uint64, name string) error {
	if name == spec.Name {
		return nil
	}
	return fault.New(fault.Conflict, "the idempotency key of job %q belongs to job %d (%s), and only a submission of the same job may have it: give each job its own key", spec.Name, id, name)
}

// admit is step 2. It also checks the caller's rights, because the tenant is in
// the spec, and before anything else: what is live or reserved in a tenant is
// told to nobody else.
func (s *submitter) admit(ctx context.Context, spec *jobspec.Job) (warnings []string, err error) {
	if err := s.core.rights.needTenant(ctx, maySubmit, spec.Tenant); err != nil {
		return nil, err
	}
	if err := s.checkImage(spec.Image); err != nil {
		return nil, err
	}
	output := ""
	if spec.Output != nil {
		output = cleanURI(spec.Output.Path)
		spec.Output.Path = output
	}
	s.core.view(func(f *facts.Facts) {
		if err = f.Checks().CheckJob(spec, output, f.Clock().EntryTime(s.core.now().UnixNano())); err == nil {
			err = checkCaps(f, spec)
		}
		if err == nil {
			err = f.Checks().CheckOutputSpelling(spec.Tenant, output)
		}
		if err == nil {
			setFileSizes(f, spec)
			err = checkFilesFit(spec)
		}
		if err == nil {
			err = f.Checks().CheckTenantShare(spec.Tenant)
		}
		if err == nil {
			err = checkFeatures(f, spec)
		}
		if err == nil {
			warnings, err = checkDemand(f, spec)
		}
		warnings = append(warnings, noImageWarning(f, spec)...)
	})
	if err != nil {
		return nil, err
	}
	for _, d := range facts.Digests(spec) {
		s.core.files.touch(d)
		if !s.core.files.has(ctx, d) {
			return nil, fault.New(fault.NotFound, "%s is not in the store: upload it first (drover job run does)", d)
		}
	}
	return warnings, nil
}

// requireUploads refuses an archive or a file that is not said to be in the store. A dry run may have such ones.
func requireUploads(spec *jobspec.Job) error {
	if im := spec.Image; im != nil && im.Kind == jobspec.ImageOCIArchive && im.Digest == "" {
		return fault.New(fault.Invalid, "image %q has no digest: upload it first (drover job run does)", im.Source)
	}
	for i := range spec.Stages {
		s := &spec.Stages[i]
		for _, file := range s.Files {
			if file.Digest == "" {
				return fault.New(fault.Invalid, "file %q of stage %q has no digest: upload it first (drover job run does)", file.Name, s.Name)
			}
		}
	}
	return nil
}

// setFileSizes sets the sizes of uploaded files, which the submitter may have stated otherwise: a node charges the
// copy of a large file to its task.
func setFileSizes(f *facts.Facts, spec *jobspec.Job) {
	set := func(digest string, size *int64) {
		if b := f.Blob(digest); b != nil {
			*size = b.Size
		}
	}
	if spec.Image != nil {
		set(spec.Image.Digest, &spec.Image.Size)
	}
	for i := range spec.Stages {
		for k := range spec.Stages[i].Files {
			set(spec.Stages[i].Files[k].Digest, &spec.Stages[i].Files[k].Size)
		}
	}
}

// checkFilesFit refuses a stage whose files exceed the disk space of its tasks. A map task also has the files of its
// combiner.
func checkFilesFit(spec *jobspec.Job) error {
	for i := range spec.Stages {
		s, sum := &spec.Stages[i], int64(0)
		for _, file := range taskFiles(spec, s) {
			sum += file.GetSize()
		}
		if sum > s.Disk {
			return fault.New(fault.Invalid, "the files of stage %q have %s together, more than its disk quota: raise disk, which is %q",
				s.Name, jobspec.FormatSize(sum), jobspec.FormatSize(s.Disk))
		}
	}
	return nil
}

// checkImage refuses pulled images and host folders that no operator allowed.
func (s *submitter) checkImage(im *jobspec.Image) error {
	if im == nil {
		return nil
	}
	if im.Kind == jobspec.ImageOCIArchive {
		return nil
	}
	name := string(im.Kind) + ":" + im.Source
	if slices.ContainsFunc(s.core.cfg.AllowImages, func(p string) bool { return hasImagePrefix(name, p) }) {
		return nil
	}
	return fault.New(fault.Denied, "image %s is not on the operator's list of allowed images: use an oci-archive, or ask for it", name)
}

// hasImagePrefix reports whether the prefix is the image's name or ends where a part of it does: "registry:docker.io/team" is a
// prefix of docker.io/team/tool and of docker.io/team:1, not of docker.io/teammate/tool.
func hasImagePrefix(name, prefix string) bool {
	const separators = "/:@"
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && prefix != "" && (rest == "" || strings.Contains(separators, rest[:1]) || strings.Contains(separators, prefix[len(prefix)-1:]))
}

// checkFeatures refuses a job that needs a feature which some node that takes tasks lacks. On one that comes later, its
// map tasks fail: see kindWithKeys.
func checkFeatures(f *facts.Facts, spec *jobspec.Job) error {
	for i := range spec.Stages {
		s := &spec.Stages[i]
		for _, need := range []struct {
			feature    string
			needed     bool
			attributes string
		}{
			{mapreduce.FeatureKeys, s.HasKeys(), "key_fields, partition_fields and partition_keys: upgrade it, or leave them out"},
			{mapreduce.FeatureKeyOrder, s.HasKeyOrder(), "key_order: upgrade it, or leave it out"},
		} {
			if name, ok := nodeWithout(f, need.feature); need.needed && ok {
				return fault.New(fault.Unsupported, "stage %q: node %s is older than %s", s.Name, name, need.attributes)
			}
		}
	}
	return nil
}

// nodeWithout returns the name of a node that takes tasks and does not have a feature. One on probation takes them, if
// one at a time.
func nodeWithout(f *facts.Facts, feature string) (name string, ok bool) {
	for _, n := range f.Nodes() {
		if n.TakesTasks() && !slices.Contains(n.Info.GetFeatures(), feature) {
			return n.Info.GetName(), true
		}
	}
	return "", false
}

// checkDemand refuses a demand that no node can ever meet.
func checkDemand(f *facts.Facts, spec *jobspec.Job) (warnings []string, err error) {
	if len(f.Nodes()) == 0 {
		return []string{"no node has registered yet: the job waits for the first one"}, nil
	}
	overhead := f.TaskOverheadMemory()
	for i := range spec.Stages {
		s := &spec.Stages[i]
		var closest *droverv1.NodeInfo
		least := math.Inf(1)
		for _, n := range f.Nodes() {
			if lack, _ := lackOf(n.Info, s, overhead); closest == nil || lack < least {
				closest, least = n.Info, lack
			}
		}
		if least > 1 {
			want := facts.Amounts{CPU: s.Resources.CPU, Memory: s.Resources.Memory, IO: s.Resources.IO}
			return nil, fault.New(fault.Exhausted, "stage %q: no node can run a task of %s and %s of disk; %s: ask for less", s.Name, want, jobspec.FormatSize(s.Disk), mostOf(closest, s, overhead))
		}
	}
	return nil, nil
}

// lackOf returns how many times what a node can have at most a task of a stage needs, of the resource that it lacks
// most: it can run there if that is at most 1. overhead is the memory that is counted beside its demand. disk is the one
// that lacks least, nil if the node has none.
func lackOf(n *droverv1.NodeInfo, s *jobspec.Stage, overhead int64) (lack float64, disk *droverv1.Disk) {
	times := func(need, have int64) float64 {
		if need <= have {
			return 1
		}
		return float64(need) / float64(max(0, have))
	}
	a, onDisk := n.GetAllocatable(), math.Inf(1)
	for _, d := range n.GetDisks() {
		if l := max(times(s.Resources.IO, d.GetIo()), times(s.Disk, d.GetSpace())); disk == nil || l < onDisk {
			disk, onDisk = d, l
		}
	}
	return max(onDisk, times(s.Resources.CPU, a.GetCpu()), times(s.Resources.Memory+overhead, a.GetMemory())), disk
}

// mostOf says what a task of a stage may ask for at most to run on a node.
func mostOf(n *droverv1.NodeInfo, s *jobspec.Stage, overhead int64) string {
	a, beside := n.GetAllocatable(), ""
	if overhead > 0 {
		beside = fmt.Sprintf(" beside the harness's %s", jobspec.FormatSize(overhead))
	}
	_, disk := lackOf(n, s, overhead)
	return fmt.Sprintf("node %s, which lacks least, has at most cpu %s, memory %s%s, I/O %s and %s of disk for one", n.GetName(), adviceText(scheduler.CPU, a.GetCpu()),
		adviceText(scheduler.Memory, max(0, a.GetMemory()-overhead)), beside, adviceText(scheduler.IO, disk.GetIo()), jobspec.FormatSizeDown(disk.GetSpace()))
}

// driverOfContainers is the driver of nodes whose tasks see no programs but those of their image.
const driverOfContainers = "containerd"

// noImageWarning returns a warning if a job without an image names a program that no node which is up can have.
func noImageWarning(f *facts.Facts, spec *jobspec.Job) []string {
	stage, program, ok := lacksImage(spec)
	if !ok {
		return nil
	}
	up := false
	for _, n := range f.Nodes() {
		if n.Up && n.Info.GetDriver() != driverOfContainers {
			return nil
		}
		up = up || n.Up
	}
	if !up {
		return nil
	}
	return []string{fmt.Sprintf("stage %q runs %q and the job has no image: its containers have no programs. Name one, such as image = \"oci-archive:busybox.tar\"", stage, program)}
}

// lacksImage reports whether a job without an image names a program that is not one of its stage's files, and which.
func lacksImage(spec *jobspec.Job) (stage, program string, ok bool) {
	if spec.Image != nil {
		return "", "", false
	}
	for i := range spec.Stages {
		s := &spec.Stages[i]
		for _, command := range [][]string{s.Command, s.CombineCommand} {
			if len(command) > 0 && !isTaskFile(s, command[0]) {
				return s.Name, command[0], true
			}
		}
	}
	return "", "", false
}

// isTaskFile reports whether a program is one of the files that the stage copies into its tasks' folder.
func isTaskFile(s *jobspec.Stage, program string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(program, "/task/"), "./")
	return slices.ContainsFunc(s.Files, func(f jobspec.File) bool { return f.Name == name })
}

// checkFiles is step 3.
func (s *submitter) checkFiles(ctx context.Context, spec *jobspec.Job) (*located, error) {
	user := s.hdfsUserFor(spec)
	if spec.GatherLogs != "" {
		if err := s.checkReachable("gather_logs", spec.GatherLogs); err != nil {
			return nil, err
		}
	}
	if spec.Input != nil {
		if err := s.checkReachable("input", spec.Input.Paths[0]); err != nil {
			return nil, err
		}
	}
	if spec.Output != nil {
		if err := s.checkReachable("output", spec.Output.Path); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.core.cfg.locateLimit)
	defer cancel()
	if out := spec.Output; out != nil {
		request := &droverv1.NodeRequest{User: user, Operation: &droverv1.NodeRequest_CheckOutput{CheckOutput: &droverv1.CheckOutputRequest{Path: out.Path}}}
		progress, err := s.requestWithProgress(func(report func(string)) error {
			_, err := s.core.dispatcher.call(ctx, request, uriScheme(out.Path), report)
			return err
		})
		if err != nil {
			return nil, fileError("output", out.Path, progress, err)
		}
	}
	if spec.Input == nil {
		return &located{}, nil
	}
	var in *located
	progress, err := s.requestWithProgress(func(report func(string)) (err error) {
		in, err = s.core.inputs.locateInput(ctx, spec.Input, user, report)
		return err
	})
	if err != nil {
		return nil, fileError("input", strings.Join(spec.Input.Paths, ", "), progress, err)
	}
	return in, nil
}

// Limits of what counts as an input of many small files.
const (
	manySplits        = 100
	smallSplit        = 4 << 20 // bytes of an average split: they are read sooner than a container is started
	packedTasks       = 16      // to suggest at least, so that they run in parallel
	minPacked         = 1 << 20 // bytes
	maxPacked   int64 = 128 << 20
)

// smallFilesWarning returns a warning with a size for combine if the job has many
// map tasks of which each reads little.
func smallFilesWarning(spec *jobspec.Job, in *located) []string {
	n, total := int64(len(in.splits)), int64(0)
	for _, s := range in.splits {
		total += splitBytes(s)
	}
	if spec.Input == nil || spec.Input.CombineBytes > 0 || n < manySplits || total/n >= smallSplit {
		return nil
	}
	packed := int64(minPacked)
	for packed < total/packedTasks && packed < maxPacked {
		packed *= 2
	}
	return []string{fmt.Sprintf("the input has %d map tasks of %s each on average, and to start one may take longer than to read it: combine = %q in the input block packs small files into fewer tasks",
		n, jobspec.FormatSize(total/n), jobspec.FormatSize(packed))}
}

// checkReachable refuses a path that no known node, even one that is down, can
// access. A cluster without nodes waits for its first.
func (s *submitter) checkReachable(what, path string) error {
	sch, known, some := uriScheme(path), 0, false
	s.core.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			known++
			some = some || slices.Contains(n.Info.GetSchemes(), sch)
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

// hdfsUserFor returns the HDFS user of the job's tenant.
func (s *submitter) hdfsUserFor(spec *jobspec.Job) (user string) {
	s.core.view(func(f *facts.Facts) { user = hdfsUser(f, spec) })
	return user
}

// prepareOutput is step 5. It returns the tag of the folder it made, "" for
// none.
func (s *submitter) prepareOutput(ctx context.Context, spec *jobspec.Job, key string) (string, error) {
	out := spec.Output
	if out == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.core.cfg.locateLimit)
	defer cancel()
	tag := s.outputTag(key)
	request := &droverv1.NodeRequest{User: s.hdfsUserFor(spec), Operation: &droverv1.NodeRequest_CheckOutput{CheckOutput: &droverv1.CheckOutputRequest{
		Path: out.Path, Prepare: true, Temporary: facts.TemporaryFolder(out.Path, tag)}}}
	progress, err := s.requestWithProgress(func(report func(string)) error {
		_, err := s.core.dispatcher.call(ctx, request, uriScheme(out.Path), report)
		return err
	})
	if err != nil {
		return "", fileError("output", out.Path, progress, err)
	}
	return tag, nil
}

// outputTag returns the tag of the folder for unfinished output. A submission that is sent again under its idempotency key,
// since a leader broke off after it had made the folder, gets the same one: nobody would remove another.
func (s *submitter) outputTag(key string) string {
	if key == "" {
		return s.core.newID()
	}
	var cluster string
	s.core.view(func(f *facts.Facts) { cluster = f.Cluster() })
	sum := sha256.Sum256([]byte(cluster + " " + key))
	return hex.EncodeToString(sum[:16])
}

// removeFolderLimit bounds the removal of an unaccepted job's folder.
const removeFolderLimit = 10 * time.Second

// removeOutputFolder removes the folder of a submission that Apply refused, unless it is that of the job which was
// accepted before under the same key. If that fails, the empty folder remains and is logged.
func (s *submitter) removeOutputFolder(ctx context.Context, spec *jobspec.Job, tag string, accepted uint64) {
	if tag == "" {
		return
	}
	path, used := facts.TemporaryFolder(spec.Output.Path, tag), false
	s.core.view(func(f *facts.Facts) {
		j := f.Job(accepted)
		used = j != nil && j.Temporary == path
	})
	if used {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeFolderLimit)
	defer cancel()
	request := &droverv1.NodeRequest{User: s.hdfsUserFor(spec), Operation: &droverv1.NodeRequest_DeletePath{DeletePath: &droverv1.DeletePathRequest{Path: path}}}
	if _, err := s.core.dispatcher.call(ctx, request, uriScheme(path), func(string) {}); err != nil {
		s.core.log.Warn("cannot remove the empty folder of a refused job", "path", path, "err", err)
	}
}

// requestWithProgress returns the last progress message, for the error's text.
func (s *submitter) requestWithProgress(request func(func(string)) error) (string, error) {
	var mu sync.Mutex
	lastProgress := ""
	err := request(func(p string) {
		mu.Lock()
		defer mu.Unlock()
		lastProgress = p
		s.core.log.Debug("a submission waits", "for", p)
	})
	mu.Lock()
	defer mu.Unlock()
	return lastProgress, err
}

// fileError returns a file system's refusal as a one-line error.
func fileError(what, path, progress string, err error) error {
	class := fault.Class(err)
	if class == nil {
		class = fault.Unavailable
	}
	text := err.Error()
	if progress != "" && errors.Is(err, fault.Unavailable) {
		text += " (" + progress + ")"
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

// dropStaging removes the splits of a submission that broke off: they may be a hundred megabytes. Where it fails, they stay
// until other large submissions take their place.
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
