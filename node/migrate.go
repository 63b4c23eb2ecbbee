package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/store"
)

// maxDumpRequests bounds the dump files that are served at once.
const maxDumpRequests = 16

// fetchDump fetches dump, folder and harness of the attempt from the node that has them. Steps,
// each safe to repeat:
//
//  1. Fetch the manifest.
//  2. Fetch and verify every file, resuming where an earlier try ended.
//  3. Write the checksums of the folder.
//  4. Record the dump together with the attempt's earlier running time.
func (a *attempt) fetchDump(ctx context.Context, spec *droverv1.TaskSpec) error {
	wanted, _ := a.mail.wantedAndSpec()
	uid, err := a.d.cfg.taskUID(spec)
	if err != nil {
		return err
	}
	from := a.id.Key()
	from.Run = wanted.GetResumeRun()
	scheme := "http"
	if a.d.cfg.shuffleCA != "" {
		scheme = "https"
	}
	c := &dump.Client{HTTP: a.d.httpClient, Scheme: scheme, Address: wanted.GetResumeFrom(), Token: spec.GetShuffleToken(), Attempt: store.IDOf(from).String()}
	m, err := c.Manifest(ctx)
	if err != nil {
		return err
	}
	program := filepath.Join(a.d.cfg.Data, "harness", m.HarnessSHA256)
	fetched := program + "." + a.id.String() + ".new" // for this attempt alone, so that the source of another one cannot write into it
	image := a.dumps.dir(1)
	if err := a.d.checkDumpSize(m, spec, image, string(a.dir), fetched); err != nil {
		return err
	}
	places := map[dump.Root]dump.Destination{
		dump.Image:  {Dir: image},
		dump.Folder: {Dir: string(a.dir), UID: int(uid), GID: int(uid)},
	}
	if !pathExists(filepath.Join(program, dump.HarnessName)) {
		places[dump.Harness] = dump.Destination{Dir: fetched}
	}
	if err := c.Fetch(ctx, m, places, func(n int64) { a.suspension.stepBytes += n }); err != nil {
		return err
	}
	if _, ok := places[dump.Harness]; ok {
		if err := installFetched(fetched, program); err != nil {
			return err
		}
	} else if err := os.RemoveAll(fetched); err != nil { // of an earlier try
		return err
	}
	size, err := dirSize(image)
	if err != nil {
		return err
	}
	if err := a.dumps.writeSums(ctx, 1, a.dir); err != nil {
		a.d.log.Warn("the folder of a moved attempt has no checksums", "attempt", a.id, "err", err)
	}
	err = a.rec.setLevel(droverv1.Level_LEVEL_CHECKPOINTED, a.container.stoppedAt, func(r *store.Record) {
		used := store.Usage(m.Usage)
		r.Started, r.StartedMS, r.BootID, r.RanNS, r.StartMono, r.Usage = true, m.StartedMS, a.d.bootID, m.RanNS, 0, &used
		r.Waiting, r.WaitedNS = m.Waiting, m.WaitedNS
		r.DumpNumber, r.Dumping, r.Dumped, r.DumpBytes = 1, true, true, size
		r.HarnessPath = filepath.Join(program, dump.HarnessName)
	})
	a.cgroup.recoverUsage()
	return err
}

// installFetched renames a fetched program to its final name, unless another attempt has installed
// the same program: a program that may be running is never written to.
func installFetched(fetched, program string) error {
	if err := os.Chmod(fetched, 0o711); err != nil {
		return err
	}
	err := os.Rename(fetched, program)
	if err != nil && pathExists(filepath.Join(program, dump.HarnessName)) {
		return os.RemoveAll(fetched)
	}
	return err
}

// dumpAllowance is what a dump and a task's folder may have on top of the task's memory and disk
// space, in bytes: logs, the harness, criu's own files, and files that grew beyond the limit on a
// disk without quotas.
const dumpAllowance = 1 << 30

// checkDumpSize refuses a dump that is larger than any task of this size can leave, or than the
// free space of the disk: the node that lists the files may not be trustworthy. Files that an
// earlier try has fetched need no space again.
func (d *daemon) checkDumpSize(m *dump.Manifest, spec *droverv1.TaskSpec, folders ...string) error {
	fetched := int64(0)
	for _, dir := range folders {
		n, err := dirSize(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fetched += n
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.Data, &st); err != nil {
		return err
	}
	limits := d.cfg.limitsOf(spec)
	for _, most := range []struct {
		bytes int64
		what  string
	}{
		{2*limits.Memory + 2*spec.GetDisk() + dumpAllowance, "may be of a task of its size"},
		{int64(st.Bavail)*st.Bsize + fetched, "are free, or fetched already, on the disk of " + d.cfg.Data},
	} {
		left := most.bytes
		for i := range m.Files {
			if left -= m.Files[i].DataBytes(); left < 0 {
				return fault.New(fault.Exhausted, "the dump has more bytes than %s: %d", most.what, most.bytes)
			}
		}
	}
	return nil
}

// dumpSource serves this node's dumps to other nodes.
type dumpSource struct {
	attempts *attemptTable
	life     context.Context // of the building of manifests
	end      context.CancelFunc
	builds   sync.WaitGroup // added to under mu while life lasts

	mu        sync.Mutex
	manifests map[string]*cachedManifest // by attempt; kept for fetchDumpLimit after the last use
}

// cachedManifest is a manifest that is built once; it may be read when built is closed.
type cachedManifest struct {
	dump     int32
	version  int
	end      context.CancelFunc // of the building
	built    chan struct{}
	manifest *dump.Manifest
	err      error
	forget   *time.Timer
}

func newDumpSource(attempts *attemptTable) *dumpSource {
	h := &dumpSource{attempts: attempts, manifests: map[string]*cachedManifest{}}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// close cancels the building of manifests and waits for it to end.
func (h *dumpSource) close() error {
	h.mu.Lock()
	h.end()
	for _, l := range h.manifests {
		l.forget.Stop()
	}
	h.mu.Unlock()
	h.builds.Wait()
	return nil
}

// Dump implements dump.Source.
func (h *dumpSource) Dump(name string) (*dump.LocalDump, error) {
	a, err := h.attempts.lookUp(store.ID(name))
	if err != nil {
		return nil, err
	}
	_, spec := a.mail.wantedAndSpec()
	served := a.mail.servedDump()
	if served == nil {
		return nil, fault.New(fault.NotFound, "attempt %s is not checkpointed", name)
	}
	dirs := map[dump.Root]string{dump.Image: a.dumps.dir(served.DumpNumber), dump.Folder: string(a.dir), dump.Harness: filepath.Dir(served.harness)}
	return &dump.LocalDump{Token: spec.GetShuffleToken(), Dirs: dirs, Manifest: func(ctx context.Context, version int) (*dump.Manifest, error) {
		return h.manifest(ctx, version, name, served, dirs)
	}}, nil
}

// servableDump is what other nodes may fetch of a dump. It is immutable.
type servableDump struct {
	dump.Manifest
	harness string
}

// manifest returns the manifest of a dump. Building it reads the whole dump and may take longer
// than a request may: it continues after ctx ends, and the next request gets the result.
func (h *dumpSource) manifest(ctx context.Context, version int, name string, served *servableDump, dirs map[dump.Root]string) (*dump.Manifest, error) {
	l, err := h.startBuild(version, name, served, dirs)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.built:
		return l.manifest, l.err
	case <-ctx.Done():
		return nil, fault.New(fault.Unavailable, "the dump of attempt %s is being read to list it: ask again", name)
	}
}

// startBuild returns the manifest of a dump, and starts to build it if nobody has.
func (h *dumpSource) startBuild(version int, name string, served *servableDump, dirs map[dump.Root]string) (*cachedManifest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.life.Err(); err != nil {
		return nil, err
	}
	if l := h.manifests[name]; l != nil && l.dump == served.DumpNumber && l.version == version {
		l.forget.Reset(fetchDumpLimit)
		return l, nil
	} else if l != nil {
		h.forgetLocked(name, l)
	}
	ctx, end := context.WithCancel(h.life)
	l := &cachedManifest{dump: served.DumpNumber, version: version, end: end, built: make(chan struct{})}
	l.forget = time.AfterFunc(fetchDumpLimit, func() { h.forget(name, l) })
	h.manifests[name] = l
	h.builds.Go(func() {
		defer close(l.built)
		if l.manifest, l.err = buildManifest(ctx, version, served, dirs); l.err != nil {
			h.forget(name, l)
		}
	})
	return l, nil
}

// drop cancels the building of the manifest of an attempt whose dumps are removed, and drops the
// manifest.
func (h *dumpSource) drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.manifests[name]; l != nil {
		h.forgetLocked(name, l)
	}
}

func (h *dumpSource) forget(name string, l *cachedManifest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forgetLocked(name, l)
}

func (h *dumpSource) forgetLocked(name string, l *cachedManifest) {
	l.forget.Stop()
	l.end()
	if h.manifests[name] == l {
		delete(h.manifests, name)
	}
}

func buildManifest(ctx context.Context, version int, served *servableDump, dirs map[dump.Root]string) (*dump.Manifest, error) {
	m := served.Manifest
	m.Version = version
	for _, root := range dump.Roots {
		files, err := dump.List(ctx, version, root, dirs[root])
		if err != nil {
			return nil, err
		}
		if root == dump.Folder {
			if err := dump.CompareSums(ctx, dirs[dump.Image]+".folder", dirs[root], files, summed...); err != nil {
				return nil, err
			}
		}
		if root == dump.Harness { // an interrupted installation may have left files beside it
			files = slices.DeleteFunc(files, func(f dump.File) bool { return f.Path != dump.HarnessName })
		}
		for i := range files {
			m.Bytes += files[i].DataBytes()
		}
		m.Files = append(m.Files, files...)
	}
	return &m, nil
}

// dumpToServe returns what other nodes may fetch of the attempt's dump, nil without one.
func (a *attempt) dumpToServe(l droverv1.Level) *servableDump {
	if l != droverv1.Level_LEVEL_CHECKPOINTED || !a.rec.Dumped {
		return nil
	}
	h := a.layout().harness
	d := &servableDump{harness: h, Manifest: dump.Manifest{Attempt: a.id.String(), DumpNumber: a.rec.DumpNumber, RanNS: a.rec.RanNS, Waiting: a.rec.Waiting, WaitedNS: a.rec.WaitedNS,
		StartedMS: a.rec.StartedMS, HarnessSHA256: filepath.Base(filepath.Dir(h))}}
	if u := usageToStore(a.cgroup.usage); u != nil {
		d.Usage = dump.Usage(*u)
	}
	return d
}
