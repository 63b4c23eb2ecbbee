package node

import (
	"context"
	"fmt"
	"os"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/store"
)

// taskFiles owns what is fetched for a task before it starts: the image in the engine, and files
// and secrets. Each mark is set only when everything of its kind is there; no process of the tenant
// runs before both are set.
type taskFiles struct {
	hasImage bool
	hasFiles bool

	id      store.ID
	dir     folder
	cfg     *Config
	images  *imageStore
	blobs   *blob.Cache
	helpers *helperRunner
}

// getImage imports the image into the engine if the engine does not pull it itself.
func (x *taskFiles) getImage(ctx context.Context, ref *droverv1.ImageRef) error {
	if ref.GetKind() == string(jobspec.ImageOCIArchive) {
		if err := x.images.ensure(ctx, ref.GetDigest()); err != nil {
			return err
		}
	}
	x.hasImage = true
	return nil
}

// getFiles writes the files of the job, the secrets, and the harness's spec.
func (x *taskFiles) getFiles(ctx context.Context, spec *droverv1.TaskSpec, layout *taskLayout) error {
	uid, err := x.cfg.taskUID(spec)
	if err != nil {
		return err
	}
	if err := checkFilesFit(spec); err != nil {
		return err
	}
	if err := layout.secrets.load(ctx, spec, uid); err != nil {
		return err
	}
	for _, f := range spec.GetFiles() {
		if err := x.getFile(ctx, f, uid); err != nil {
			return err
		}
	}
	if spec.GetKind() != kindGroup {
		if err := layout.writeSpec(spec, uid); err != nil {
			return err
		}
	}
	x.hasFiles = true
	return nil
}

// checkFilesFit refuses files whose total size exceeds the disk quota.
func checkFilesFit(spec *droverv1.TaskSpec) error {
	sum := int64(0)
	for _, f := range spec.GetFiles() {
		sum += f.GetSize()
	}
	if d := spec.GetDisk(); d > 0 && sum > d {
		return fault.New(fault.Invalid, "the files of stage %q have %s together, more than its disk quota: raise disk, which is %q",
			spec.GetStageName(), jobspec.FormatSize(sum), jobspec.FormatSize(d))
	}
	return nil
}

func (x *taskFiles) getFile(ctx context.Context, ref *droverv1.FileRef, uid uint32) error {
	blob, err := x.blobs.Get(ctx, ref.GetDigest())
	if err != nil {
		return fmt.Errorf("file %q: %w", ref.GetName(), err)
	}
	defer blob.Close()
	return x.dir.putFile(ref.GetName(), ref.GetMode(), uid, func(to *os.File) error {
		if ref.GetSize() < minChargedBytes || !x.helpers.chargesCopies() {
			return blob.CopyTo(to)
		}
		return x.helpers.copyCharged(ctx, x.id.String(), uid, to, blob, ref.GetDigest())
	})
}

// minChargedBytes is the size from which a task's file is copied by a process in
// the attempt's cgroup, so that pages and writes are charged to the task. For
// smaller files the process would cost more than the copy.
const minChargedBytes = 1 << 20
