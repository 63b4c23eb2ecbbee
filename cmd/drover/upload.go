package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"

	"connectrpc.com/connect"
)

// localFile is a local file that a job needs in the coordinator's store.
type localFile struct {
	path     string
	label    string // for messages: `file "x" of stage "map"`
	size     int64
	mode     uint32
	digest   *string // field of the spec, set by uploadFiles
	specSize *int64
}

// collectLocalFiles returns the local files that a job names, with paths relative to the
// job file's folder. Files that are missing, not regular or too large are an error, a line each.
func collectLocalFiles(j *jobspec.Job, jobFile string) ([]localFile, error) {
	base := filepath.Dir(jobFile)
	var out []localFile
	var wrong []error
	add := func(what, source string, digest *string, length *int64) {
		if *digest != "" {
			return // canonical JSON of an earlier submission
		}
		file := source
		if !filepath.IsAbs(file) {
			file = filepath.Join(base, file)
		}
		st, err := os.Stat(file)
		switch {
		case err != nil:
			wrong = append(wrong, fault.New(fault.Invalid, "%s: %w", what, err))
		case !st.Mode().IsRegular():
			wrong = append(wrong, fault.New(fault.Invalid, "%s: %s is not a regular file", what, file))
		case st.Size() > jobspec.MaxUploadBytes:
			wrong = append(wrong, fault.New(fault.Exhausted, "%s: %s has %s, at most %s can be uploaded; put large data into HDFS and name it as input", what, file, jobspec.FormatSize(st.Size()), jobspec.FormatSize(jobspec.MaxUploadBytes)))
		default:
			out = append(out, localFile{path: file, label: what, size: st.Size(), mode: uint32(st.Mode().Perm()), digest: digest, specSize: length})
		}
	}
	for i := range j.Stages {
		s := &j.Stages[i]
		for k := range s.Files {
			f := &s.Files[k]
			before := len(out)
			add(fmt.Sprintf("file %q of stage %q", f.Name, s.Name), f.Source, &f.Digest, &f.Size)
			if f.Mode == 0 && len(out) > before {
				f.Mode = out[len(out)-1].mode & 0o755
			}
		}
	}
	if im := j.Image; im != nil && im.Kind == jobspec.ImageOCIArchive {
		add("image", im.Source, &im.Digest, &im.Size)
	}
	return out, errors.Join(wrong...)
}

// jobHints returns notes about what a job that is valid probably lacks.
func jobHints(j *jobspec.Job, jobFile string) []string {
	return append(undeclaredFileHints(j, jobFile), lostOutputHints(j)...)
}

// lostOutputHints returns a note if the job has no output, and a map or reduce stage whose output
// is lost therefore.
func lostOutputHints(j *jobspec.Job) []string {
	if j.Output != nil {
		return nil
	}
	for _, kind := range []jobspec.StageKind{jobspec.KindReduce, jobspec.KindMap} { // with a reduce stage the output is that of it
		for i := range j.Stages {
			if s := &j.Stages[i]; s.Kind == kind {
				return []string{fmt.Sprintf(`note: the job has no output: what stage %q writes is thrown away; add output { path = "file:///…" } to the job to keep it`, s.Name)}
			}
		}
	}
	return nil
}

// undeclaredFileHints returns a hint for each argument of a command that names a file beside
// the job file but not among the files of its stage, so that tasks will not find it.
func undeclaredFileHints(j *jobspec.Job, jobFile string) (hints []string) {
	for i := range j.Stages {
		s := &j.Stages[i]
		for _, arg := range slices.Concat(s.Command, s.CombineCommand) {
			name := path.Clean(arg)
			if !filepath.IsLocal(name) || slices.ContainsFunc(s.Files, func(f jobspec.File) bool { return path.Clean(f.Name) == name }) {
				continue
			}
			if st, err := os.Stat(filepath.Join(filepath.Dir(jobFile), name)); err == nil && st.Mode().IsRegular() {
				hints = append(hints, fmt.Sprintf("note: %s is in the job file's folder, but tasks of stage %q will not have it: add file %q { source = %q } to the stage, unless the image has it",
					arg, s.Name, name, name))
			}
		}
	}
	return hints
}

// uploadFiles hashes the files, uploads those that the coordinator lacks and stores the
// digests in the spec.
func uploadFiles(ctx context.Context, cl *client, files []localFile, printf func(string, ...any)) error {
	byDigest := map[string]localFile{}
	var digests []string
	for _, f := range files {
		d, n, err := hashFile(f.path)
		if err != nil {
			return fault.New(fault.Invalid, "%s: %w", f.label, err)
		}
		*f.digest, *f.specSize = d, n
		if _, twice := byDigest[d]; !twice {
			digests = append(digests, d)
		}
		byDigest[d] = f
	}
	if len(digests) == 0 {
		return nil
	}
	res, err := cl.HasBlobs(ctx, connect.NewRequest(&droverv1.HasBlobsRequest{Digests: digests}))
	if err != nil {
		return cl.classifyError(err)
	}
	for _, d := range res.Msg.Missing {
		f, ok := byDigest[d]
		if !ok {
			continue
		}
		printf("uploading %s (%s)", filepath.Base(f.path), jobspec.FormatSize(f.size))
		send := func() error { return putBlob(ctx, cl, d, f, newUploadMeter(f, printf)) }
		if err := coordclient.NewRetrier(cl.transport).Do(ctx, true, send); err != nil {
			return fmt.Errorf("%s: upload: %w", f.label, cl.classifyError(err))
		}
	}
	return nil
}

func hashFile(path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), n, err
}

// uploadChunkBytes is the size of one message of an upload.
const uploadChunkBytes = 256 << 10

// meterInterval is the interval between progress reports of an upload.
const meterInterval = 3 * time.Second

// uploadMeter reports the progress of an upload.
type uploadMeter struct {
	name       string
	sent, size int64
	start      time.Time
	lastReport time.Time
	now        func() time.Time
	printf     func(string, ...any)
}

func newUploadMeter(f localFile, printf func(string, ...any)) *uploadMeter {
	return &uploadMeter{name: filepath.Base(f.path), size: f.size, start: time.Now(), lastReport: time.Now(), now: time.Now, printf: printf}
}

// add counts sent bytes and reports the progress at most once per meterInterval.
func (m *uploadMeter) add(n int) {
	m.sent += int64(n)
	now := m.now()
	if now.Sub(m.lastReport) < meterInterval || m.sent >= m.size {
		return
	}
	m.lastReport = now
	rate := int64(float64(m.sent) / now.Sub(m.start).Seconds())
	left := time.Duration(float64(m.size-m.sent) / float64(max(rate, 1)) * float64(time.Second)).Round(time.Second)
	m.printf("uploading %s: %s of %s, %s, %s left", m.name, jobspec.FormatSize(m.sent), jobspec.FormatSize(m.size), jobspec.FormatRate(rate), left)
}

// putBlob uploads a file. Its error is the call's own: the retrier sees by it whether
// another coordinator may take the file.
func putBlob(ctx context.Context, cl *client, digest string, f localFile, m *uploadMeter) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	st := cl.PutBlob(ctx)
	first := &droverv1.PutBlobRequest{Digest: digest, Size: f.size}
	if err := st.Send(first); err != nil && !errors.Is(err, io.EOF) { // whose reason the response has
		return err
	}
	buf := make([]byte, uploadChunkBytes)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if st.Send(&droverv1.PutBlobRequest{Data: buf[:n]}) != nil {
				break // the response contains the reason
			}
			m.add(n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err = st.CloseAndReceive()
	return err
}
