package coordtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// FS is the file system that simulated nodes share: inputs with blocks, and
// outputs. It executes requests as a real one would.
type FS struct {
	mu            sync.Mutex
	inputs        map[string][]*droverv1.FileBlock
	files         map[string]bool
	requestCounts map[string]int                                         // executed, by kind
	failWith      func(*droverv1.NodeRequest) (class error, text string) // checked before execution
	Requests      []string                                               // names of the nodes that received locate requests, in order
}

// NewFS returns an empty file system.
func NewFS() *FS {
	return &FS{inputs: map[string][]*droverv1.FileBlock{}, files: map[string]bool{}, requestCounts: map[string]int{}}
}

// Input adds a file of blocks of 1 MiB, each on the named hosts (round robin,
// with port 9866).
func (f *FS) Input(uri string, blocks int, hosts ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const size = 1 << 20
	for i := range blocks {
		b := &droverv1.FileBlock{Uri: uri, Offset: int64(i) * size, Length: size, FileLength: int64(blocks) * size}
		if len(hosts) > 0 {
			b.Hosts = []string{hosts[i%len(hosts)] + ":9866"}
		}
		f.inputs[uri] = append(f.inputs[uri], b)
	}
}

// Move moves all blocks of all inputs to a host.
func (f *FS) Move(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uri, blocks := range f.inputs {
		moved := make([]*droverv1.FileBlock, len(blocks)) // the old ones may be on their way
		for i, b := range blocks {
			moved[i] = &droverv1.FileBlock{Uri: uri, Offset: b.GetOffset(), Length: b.GetLength(), FileLength: b.GetFileLength(), Hosts: []string{host + ":9866"}}
		}
		f.inputs[uri] = moved
	}
}

// FailWith makes requests fail for which fn returns a class; nil ends it.
func (f *FS) FailWith(fn func(*droverv1.NodeRequest) (error, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failWith = fn
}

// Make creates a file or folder.
func (f *FS) Make(uri string) { f.write(uri) }

func (f *FS) write(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[uri] = true
}

// Files returns what exists besides inputs, sorted.
func (f *FS) Files() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for p := range f.files {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// RequestCount returns the number of executed requests of a kind: locate,
// check, commit, delete, gather.
func (f *FS) RequestCount(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requestCounts[kind]
}

func (f *FS) perform(node string, request *droverv1.NodeRequest) *droverv1.NodeResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &droverv1.NodeResponse{Id: request.GetId()}
	if f.failWith != nil {
		if class, text := f.failWith(request); class != nil {
			a.Error, a.ErrorClass = text, class.Error()
			return a
		}
	}
	var err error
	switch w := request.GetOperation().(type) {
	case *droverv1.NodeRequest_Locate:
		f.requestCounts["locate"]++
		f.Requests = append(f.Requests, node)
		a.Locate, err = f.locate(w.Locate)
	case *droverv1.NodeRequest_CheckOutput:
		f.requestCounts["check"]++
		if f.exists(w.CheckOutput.GetPath()) {
			err = fault.New(fault.Exists, "%s exists already", w.CheckOutput.GetPath())
		}
	case *droverv1.NodeRequest_CommitOutput:
		f.requestCounts["commit"]++
		err = f.commit(w.CommitOutput)
	case *droverv1.NodeRequest_DeletePath:
		f.requestCounts["delete"]++
		f.remove(w.DeletePath.GetPath())
	case *droverv1.NodeRequest_GatherLogs:
		f.requestCounts["gather"]++
		f.files[w.GatherLogs.GetPath()] = true
	default:
		err = fault.New(fault.Unsupported, "order %T", w)
	}
	if err != nil {
		a.Error, a.ErrorClass = err.Error(), fault.Class(err).Error()
	}
	return a
}

func (f *FS) exists(p string) bool {
	for q := range f.files {
		if q == p || strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	return false
}

func (f *FS) remove(p string) {
	for q := range f.files {
		if q == p || strings.HasPrefix(q, p+"/") {
			delete(f.files, q)
		}
	}
}

func (f *FS) locate(l *droverv1.LocateRequest) (*droverv1.LocateResponse, error) {
	var all []*droverv1.FileBlock
	a := &droverv1.LocateResponse{}
	for _, p := range l.GetPaths() {
		found := false
		for uri, blocks := range f.inputs {
			if ok, _ := path.Match(p, uri); ok || uri == p {
				found = true
				a.TotalFiles++
				all = append(all, blocks...)
			}
		}
		if !found {
			return nil, fault.New(fault.NotFound, "%s does not exist", p)
		}
	}
	slices.SortStableFunc(all, func(x, y *droverv1.FileBlock) int { return strings.Compare(x.GetUri(), y.GetUri()) })
	for _, b := range all {
		a.TotalBytes += b.GetLength()
	}
	from := min(int(l.GetFirstBlock()), len(all))
	to := min(from+int(l.GetMaxBlocks()), len(all))
	a.Blocks = all[from:to]
	if to < len(all) {
		a.NextBlock = int32(to)
	}
	return a, nil
}

// commit renames as a node does: repeatable, never over an existing file.
func (f *FS) commit(c *droverv1.CommitOutputRequest) error {
	for _, file := range c.GetFiles() {
		to := c.GetPath() + "/" + file.GetName()
		switch {
		case f.files[file.GetSource()] && f.files[to]:
			return fault.New(fault.Exists, "%s exists already", to)
		case f.files[file.GetSource()]:
			delete(f.files, file.GetSource())
			f.files[to] = true
		case !f.files[to]:
			return fault.New(fault.NotFound, "%s does not exist", file.GetSource())
		}
	}
	f.files[c.GetPath()+"/_SUCCESS"] = true
	f.remove(c.GetTemporary())
	return nil
}

// String lists what exists.
func (f *FS) String() string { return fmt.Sprint(f.Files()) }
