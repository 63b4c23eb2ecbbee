package coordinator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

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

// checkReachable refuses a path that no known node, up or down, can access. In a cluster without
// nodes the job waits for the first one.
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

// outputTag returns the tag of the folder for unfinished output. A submission that is repeated
// under its idempotency key gets the same tag: if its first leader failed after it had made the
// folder, nobody would remove a folder with another tag.
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

// removeOutputFolder removes the folder of a submission that Apply refused, unless it belongs to
// the job accepted earlier under the same key. If that fails, an error is logged and the empty
// folder remains.
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

// requestWithProgress calls request and returns the last progress message, for the text of an
// error.
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

// Limits of what counts as an input of many small files.
const (
	manySplits        = 100
	smallSplit        = 4 << 20 // bytes of an average split: reading it takes less time than starting a container
	packedTasks       = 16      // the least number of tasks to suggest, so that they run in parallel
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
