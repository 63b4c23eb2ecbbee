package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"

	"connectrpc.com/connect"
)

// local is a file of this machine that a job needs in the coordinator's store.
type local struct {
	path   string
	what   string // for messages: `file "x" of stage "map"`
	size   int64
	mode   uint32
	digest *string // of the spec, set by hash
	length *int64
}

// localFiles lists what a job refers to on this machine, with paths relative
// to the job file's folder, and refuses at once what is missing, no regular
// file or too large.
func localFiles(j *jobspec.Job, jobFile string) ([]local, error) {
	base := filepath.Dir(jobFile)
	var out []local
	add := func(what, source string, digest *string, length *int64) error {
		if *digest != "" {
			return nil // canonical JSON that was submitted before
		}
		file := source
		if !filepath.IsAbs(file) {
			file = filepath.Join(base, file)
		}
		st, err := os.Stat(file)
		switch {
		case err != nil:
			return fault.New(fault.Invalid, "%s: %w", what, err)
		case !st.Mode().IsRegular():
			return fault.New(fault.Invalid, "%s: %s is no regular file", what, file)
		case st.Size() > jobspec.MaxSubmission:
			return fault.New(fault.Exhausted, "%s: %s has %s, at most %s can be uploaded; put large data into HDFS and name it as input", what, file, jobspec.FormatSize(st.Size()), jobspec.FormatSize(jobspec.MaxSubmission))
		}
		out = append(out, local{path: file, what: what, size: st.Size(), mode: uint32(st.Mode().Perm()), digest: digest, length: length})
		return nil
	}
	for i := range j.Stages {
		s := &j.Stages[i]
		for k := range s.Files {
			f := &s.Files[k]
			if err := add(fmt.Sprintf("file %q of stage %q", f.Name, s.Name), f.Source, &f.Digest, &f.Size); err != nil {
				return nil, err
			}
			if f.Mode == 0 && len(out) > 0 {
				f.Mode = out[len(out)-1].mode & 0o755
			}
		}
	}
	if im := j.Image; im != nil && im.Kind == jobspec.ImageOCIArchive {
		if err := add("image", im.Source, &im.Digest, &im.Size); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// forgotten names what the commands of a job seem to mean and what lies beside
// the job file, but is not among the files of its stage: tasks will not find it.
func forgotten(j *jobspec.Job, jobFile string) (hints []string) {
	for i := range j.Stages {
		s := &j.Stages[i]
		for _, arg := range slices.Concat(s.Command, s.CombineCommand) {
			name := path.Clean(arg)
			if !filepath.IsLocal(name) || slices.ContainsFunc(s.Files, func(f jobspec.File) bool { return path.Clean(f.Name) == name }) {
				continue
			}
			if st, err := os.Stat(filepath.Join(filepath.Dir(jobFile), name)); err == nil && st.Mode().IsRegular() {
				hints = append(hints, fmt.Sprintf("note: %s lies beside the job file, but tasks of stage %q will not have it: add file %q { source = %q } to the stage, unless the image has it",
					arg, s.Name, name, name))
			}
		}
	}
	return hints
}

// upload hashes the files, sends those that the coordinator lacks and fills
// in their digests.
func upload(ctx context.Context, cl *client, files []local, say func(string, ...any)) error {
	byDigest := map[string]local{}
	var digests []string
	for _, f := range files {
		d, n, err := hashFile(f.path)
		if err != nil {
			return fault.New(fault.Invalid, "%s: %w", f.what, err)
		}
		*f.digest, *f.length = d, n
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
		return cl.explain(err)
	}
	for _, d := range res.Msg.Missing {
		f, ok := byDigest[d]
		if !ok {
			continue
		}
		say("uploading %s (%s)", filepath.Base(f.path), jobspec.FormatSize(f.size))
		if err := putBlob(ctx, cl, d, f, newMeter(f, say)); err != nil {
			return fmt.Errorf("%s: upload: %w", f.what, err)
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

// chunk is the size of one message of an upload, in bytes.
const chunk = 256 << 10

// meterEvery is how often a slow upload says how far it is.
const meterEvery = 3 * time.Second

// meter tells how far an upload is.
type meter struct {
	name       string
	sent, size int64
	start      time.Time
	said       time.Time
	now        func() time.Time
	say        func(string, ...any)
}

func newMeter(f local, say func(string, ...any)) *meter {
	return &meter{name: filepath.Base(f.path), size: f.size, start: time.Now(), said: time.Now(), now: time.Now, say: say}
}

// add counts bytes that were sent.
func (m *meter) add(n int) {
	m.sent += int64(n)
	now := m.now()
	if now.Sub(m.said) < meterEvery || m.sent >= m.size {
		return
	}
	m.said = now
	rate := int64(float64(m.sent) / now.Sub(m.start).Seconds())
	left := time.Duration(float64(m.size-m.sent) / float64(max(rate, 1)) * float64(time.Second)).Round(time.Second)
	m.say("uploading %s: %s of %s, %s, %s left", m.name, jobspec.FormatSize(m.sent), jobspec.FormatSize(m.size), jobspec.FormatRate(rate), left)
}

func putBlob(ctx context.Context, cl *client, digest string, f local, m *meter) error {
	in, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	st := cl.PutBlob(ctx)
	first := &droverv1.PutBlobRequest{Digest: digest, Size: f.size}
	if err := st.Send(first); err != nil && err != io.EOF {
		return cl.explain(err)
	}
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if st.Send(&droverv1.PutBlobRequest{Data: buf[:n]}) != nil {
				break // the answer says why
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
	return cl.explain(err)
}
