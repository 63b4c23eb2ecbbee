package coordinator

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/scheduler"
)

// admit is step 2. It first checks the caller's rights in the tenant, which is in the spec: only
// callers with rights may learn what is live or reserved in it.
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

// requireUploads returns an error if an archive or file has no digest, which means that it was not
// uploaded. Dry runs may have such files.
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

// setFileSizes sets the sizes of uploaded files to those stored, since the submitter may have
// stated others: a node charges the copy of a large file to its task.
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

// checkFilesFit refuses a stage whose files exceed the disk space of its tasks. A map task also has
// the files of its combiner.
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

// checkImage refuses images and host folders that no operator allowed.
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

// hasImagePrefix reports whether prefix is the image's name, or ends at a separator in it:
// "registry:docker.io/team" is a prefix of docker.io/team/tool and of docker.io/team:1, not of
// docker.io/teammate/tool.
func hasImagePrefix(name, prefix string) bool {
	const separators = "/:@"
	rest, ok := strings.CutPrefix(name, prefix)
	return ok && prefix != "" && (rest == "" || strings.Contains(separators, rest[:1]) || strings.Contains(separators, prefix[len(prefix)-1:]))
}

// checkFeatures refuses a job that needs a feature which some node that takes tasks lacks. On such
// a node that comes later, the job's map tasks fail: see kindWithKeys.
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

// nodeWithout returns the name of a node that takes tasks and lacks a feature. A node on probation
// counts: it takes one task at a time.
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
		closest, lack := closestNode(f, s, func(*facts.Node) bool { return true })
		if lack > 1 {
			want := facts.Amounts{CPU: s.Resources.CPU, Memory: s.Resources.Memory, IO: s.Resources.IO}
			return nil, fault.New(fault.Exhausted, "stage %q: no node can run a task of %s and %s of disk; %s: ask for less", s.Name, want, jobspec.FormatSize(s.Disk), mostOf(closest, s, overhead))
		}
	}
	return nil, nil
}

// closestNode returns the node that lacks least for a task of a stage, among those that may run it, and its lack; nil if there
// is none. O(nodes).
func closestNode(f *facts.Facts, s *jobspec.Stage, mayRun func(*facts.Node) bool) (closest *droverv1.NodeInfo, least float64) {
	overhead := f.TaskOverheadMemory()
	for _, n := range f.Nodes() {
		if !mayRun(n) {
			continue
		}
		if lack, _ := lackOf(n.Info, s, overhead); closest == nil || lack < least {
			closest, least = n.Info, lack
		}
	}
	return closest, least
}

// lackOf returns the largest ratio of what a task of a stage needs to what a node can have at most,
// over all resources: the task can run there if the ratio is at most 1. overhead is the memory that
// is charged beside the task's demand. disk is the disk with the smallest ratio, nil if the node
// has none.
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

// mostOf returns the largest demand with which a task of a stage can run on a node, as text.
func mostOf(n *droverv1.NodeInfo, s *jobspec.Stage, overhead int64) string {
	a, beside := n.GetAllocatable(), ""
	if overhead > 0 {
		beside = fmt.Sprintf(" beside the harness's %s", jobspec.FormatSize(overhead))
	}
	_, disk := lackOf(n, s, overhead)
	return fmt.Sprintf("node %s, which lacks least, has at most cpu %s, memory %s%s, I/O %s and %s of disk for one", n.GetName(), adviceText(scheduler.CPU, a.GetCpu()),
		adviceText(scheduler.Memory, max(0, a.GetMemory()-overhead)), beside, adviceText(scheduler.IO, disk.GetIo()), jobspec.FormatSizeDown(disk.GetSpace()))
}

// driverOfContainers is the driver of nodes whose tasks see no programs other than those of their
// image.
const driverOfContainers = "containerd"

// noImageWarning returns a warning if a job without an image names a program that no node of the
// cluster, as it is up, can have.
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

// lacksImage reports whether a job without an image names a program that is not one of its stage's
// files. It returns the stage and the program.
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

// isTaskFile reports whether a program is one of the files that the stage copies into its tasks'
// folder.
func isTaskFile(s *jobspec.Stage, program string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(program, "/task/"), "./")
	return slices.ContainsFunc(s.Files, func(f jobspec.File) bool { return f.Name == name })
}
