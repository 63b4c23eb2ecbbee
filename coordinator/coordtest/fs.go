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

// FS is the file system that pretended nodes share: inputs with blocks, and
// outputs. It does what an Order asks as a real one would.
type FS struct {
	mu      sync.Mutex
	inputs  map[string][]*droverv1.FileBlock
	files   map[string]bool
	orders  map[string]int                                   // done, by kind
	failing func(*droverv1.Order) (class error, text string) // before anything is done
	Asked   []string                                         // nodes that were asked for blocks, in order
}

// NewFS makes an empty file system.
func NewFS() *FS {
	return &FS{inputs: map[string][]*droverv1.FileBlock{}, files: map[string]bool{}, orders: map[string]int{}}
}

// Input adds a file of blocks of 1 MiB, each on the named hosts (taken in
// turn, with port 9866).
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

// FailWith makes orders fail for which fn gives a class; nil ends it.
func (f *FS) FailWith(fn func(*droverv1.Order) (error, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = fn
}

// Make makes a file or folder exist.
func (f *FS) Make(uri string) { f.write(uri) }

func (f *FS) write(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[uri] = true
}

// Files lists what exists besides inputs, in order.
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

// Orders counts the orders of a kind that were done: locate, check, commit,
// delete.
func (f *FS) Orders(kind string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.orders[kind]
}

func (f *FS) do(node string, o *droverv1.Order) *droverv1.OrderAnswer {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &droverv1.OrderAnswer{Id: o.GetId()}
	if f.failing != nil {
		if class, text := f.failing(o); class != nil {
			a.Error, a.ErrorClass = text, class.Error()
			return a
		}
	}
	var err error
	switch w := o.GetWhat().(type) {
	case *droverv1.Order_Locate:
		f.orders["locate"]++
		f.Asked = append(f.Asked, node)
		a.Locate, err = f.locate(w.Locate)
	case *droverv1.Order_CheckOutput:
		f.orders["check"]++
		if f.exists(w.CheckOutput.GetPath()) {
			err = fault.New(fault.Exists, "%s exists already", w.CheckOutput.GetPath())
		}
	case *droverv1.Order_CommitOutput:
		f.orders["commit"]++
		err = f.commit(w.CommitOutput)
	case *droverv1.Order_DeletePath:
		f.orders["delete"]++
		f.remove(w.DeletePath.GetPath())
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

func (f *FS) locate(l *droverv1.LocateOrder) (*droverv1.LocateAnswer, error) {
	var all []*droverv1.FileBlock
	a := &droverv1.LocateAnswer{}
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

// commit renames as a node does: repeatable, never over another file.
func (f *FS) commit(c *droverv1.CommitOutputOrder) error {
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

// String shows what exists.
func (f *FS) String() string { return fmt.Sprint(f.Files()) }
