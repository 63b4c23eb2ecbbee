package node

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/dump"
	"github.com/drover-run/drover/node/store"
)

// dumpsAtOnce bounds the files of dumps that are served at once.
const dumpsAtOnce = 16

// fetchDump brings dump, folder and harness of the attempt from the node that
// holds them. Steps, each safe to repeat:
//
//  1. ask for the list;
//  2. bring every file, going on where an earlier try ended, and verify it;
//  3. record that the dump is here, and what was done before it.
func (a *attempt) fetchDump(ctx context.Context, spec *droverv1.TaskSpec) error {
	wanted, _ := a.goal()
	uid, err := a.d.uid(spec)
	if err != nil {
		return err
	}
	from := a.id.Key()
	from.Run = wanted.GetResumeRun()
	scheme := "http"
	if a.d.cfg.ShuffleCA != "" {
		scheme = "https"
	}
	c := &dump.Client{HTTP: a.d.web, Scheme: scheme, Address: wanted.GetResumeFrom(), Token: spec.GetShuffleToken(), Attempt: store.IDOf(from).String()}
	m, err := c.Manifest(ctx)
	if err != nil {
		return err
	}
	program := filepath.Join(a.d.cfg.Data, "harness", m.Program)
	image := a.dumpDir(1)
	places := map[dump.Root]dump.Place{
		dump.Image:  {Dir: image},
		dump.Folder: {Dir: string(a.dir), UID: int(uid), GID: int(uid)},
	}
	if !there(filepath.Join(program, "drover")) {
		places[dump.Harness] = dump.Place{Dir: program + ".new"}
	}
	if err := c.Fetch(ctx, m, places, func(n int64) { a.sus.bytes += n }); err != nil {
		return err
	}
	if _, fetched := places[dump.Harness]; fetched {
		if err := os.Chmod(program+".new", 0o711); err != nil {
			return err
		}
		if err := os.Rename(program+".new", program); err != nil && !there(filepath.Join(program, "drover")) {
			return err
		}
	}
	size, err := sizeOf(image)
	if err != nil {
		return err
	}
	return a.at(droverv1.Level_LEVEL_CHECKPOINTED, func(r *store.Record) {
		r.Started, r.StartedMS, r.BootID, r.RanNS, r.StartMono, r.CPUMS = true, m.StartedMS, a.d.boot, m.RanNS, 0, m.CPUMS
		r.Dump, r.Dumping, r.Dumped, r.DumpBytes = 1, true, true, size
		r.Harness = filepath.Join(program, "drover")
	})
}

// holdings finds the dumps of this node for others.
type holdings struct {
	d *daemon

	mu    sync.Mutex
	lists map[string]*listed
}

// listed is a manifest that is made once.
type listed struct {
	once sync.Once
	dump int32
	m    *dump.Manifest
	err  error
}

// Dump implements dump.Holder.
func (h *holdings) Dump(name string) (*dump.Holding, error) {
	h.d.mu.Lock()
	a := h.d.attempts[store.ID(name)]
	silent := a != nil && a.silent
	h.d.mu.Unlock()
	if a == nil || silent {
		return nil, fault.New(fault.NotFound, "attempt %s is not on this node", name)
	}
	_, spec := a.goal()
	a.mu.Lock()
	held := a.holding
	a.mu.Unlock()
	if held == nil {
		return nil, fault.New(fault.NotFound, "attempt %s is not checkpointed", name)
	}
	dirs := map[dump.Root]string{dump.Image: a.dumpDir(held.Dump), dump.Folder: string(a.dir), dump.Harness: filepath.Dir(held.harness)}
	return &dump.Holding{Token: spec.GetShuffleToken(), Dirs: dirs, Manifest: func() (*dump.Manifest, error) { return h.manifest(name, held, dirs) }}, nil
}

// held is what others may know of a dump. It is never changed.
type held struct {
	dump.Manifest
	harness string
}

// manifest lists a dump; it reads all of it the first time.
func (h *holdings) manifest(name string, of *held, dirs map[dump.Root]string) (*dump.Manifest, error) {
	h.mu.Lock()
	if h.lists == nil {
		h.lists = map[string]*listed{}
	}
	l := h.lists[name]
	if l == nil || l.dump != of.Dump {
		l = &listed{dump: of.Dump}
		h.lists[name] = l
	}
	h.mu.Unlock()
	l.once.Do(func() { l.m, l.err = list(of, dirs) })
	if l.err != nil {
		h.mu.Lock()
		delete(h.lists, name)
		h.mu.Unlock()
	}
	return l.m, l.err
}

func list(of *held, dirs map[dump.Root]string) (*dump.Manifest, error) {
	m := of.Manifest
	for _, root := range []dump.Root{dump.Image, dump.Folder, dump.Harness} {
		files, err := dump.List(context.Background(), root, dirs[root])
		if err != nil {
			return nil, err
		}
		for i := range files {
			m.Bytes += files[i].Bytes
		}
		m.Files = append(m.Files, files...)
	}
	return &m, nil
}

// publishDump tells the server whether there is a dump to serve. The loop calls
// it whenever it reports.
func (a *attempt) publishDump(l droverv1.Level) {
	var now *held
	if l == droverv1.Level_LEVEL_CHECKPOINTED && a.rec.Dumped {
		h := a.harness()
		now = &held{harness: h, Manifest: dump.Manifest{Version: dump.Version, Attempt: a.id.String(), Dump: a.rec.Dump, RanNS: a.rec.RanNS,
			CPUMS: a.usage.GetCpuMs(), StartedMS: a.rec.StartedMS, Program: filepath.Base(filepath.Dir(h))}}
		if a.usage == nil {
			now.CPUMS = a.rec.CPUMS
		}
	}
	a.mu.Lock()
	a.holding = now
	a.mu.Unlock()
}
