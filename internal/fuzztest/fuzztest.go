// Package fuzztest runs the fuzz targets of the repository. Every target calls Run in place of
// F.Fuzz, so that all have the same bound on memory, and can be run with millions of inputs. Go's
// own engine, which looks for inputs that reach new code, spends some ten microseconds on each
// input; most parsers need less than one.
//
//	go test -run '^FuzzParse$'                                 the seeds and the inputs kept in testdata
//	go test -run '^$' -fuzz '^FuzzParse$'                      inputs that Go's engine looks for
//	DROVER_FUZZ_INPUTS=1000000 go test -run '^FuzzParse$'      that many mutations of seeds and corpora
//
// The last form takes its seed from RAPID_SEED, or draws and prints one. It adds the corpora in the
// folders that DROVER_FUZZ_CORPUS lists to the seeds. It writes a failing input to testdata, where
// every run of the tests finds it. Only tests import this package.
package fuzztest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime/metrics"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
)

// maxAlloc bounds what a target may allocate for one input, in bytes: an upper bound on the memory
// that the input costs.
const maxAlloc = 64 << 20

// Environment variables of a run.
const (
	EnvInputs = "DROVER_FUZZ_INPUTS" // how many mutated inputs a target gets
	EnvCorpus = "DROVER_FUZZ_CORPUS" // folders of inputs, as a list of paths
)

// Run is F.Fuzz for fn. In addition, an input for which fn allocates more than maxAlloc fails.
func Run(f *testing.F, fn any) {
	f.Helper()
	r := &runner{fn: reflect.ValueOf(fn), heap: []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}}
	target := r.checked
	if v := os.Getenv(EnvInputs); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			f.Fatalf("%s=%q: give a number of inputs", EnvInputs, v)
		}
		last, mutated := zeros(r.fn.Type()), false
		f.Add(last...) // F.Fuzz runs the seeds in order, and this seed after all seeds added before
		target = func(args []reflect.Value) []reflect.Value {
			switch in := values(args); {
			case mutated:
			case reflect.DeepEqual(in, last):
				mutated = true
				r.mutate(args[0].Interface().(*testing.T), f.Name(), n)
			default:
				r.corpus = append(r.corpus, in)
			}
			return r.checked(args)
		}
	}
	f.Fuzz(reflect.MakeFunc(r.fn.Type(), target).Interface())
}

// runner runs one target.
type runner struct {
	fn      reflect.Value
	heap    []metrics.Sample
	corpus  [][]any
	largest uint64 // bytes allocated for one input
}

// checked runs the target for one input.
func (r *runner) checked(args []reflect.Value) []reflect.Value {
	before := r.allocated()
	out := r.fn.Call(args)
	used := r.allocated() - before
	r.largest = max(r.largest, used)
	if used > maxAlloc {
		args[0].Interface().(*testing.T).Errorf("%d MiB were allocated for one input: at most %d MiB may be", used>>20, maxAlloc>>20)
	}
	return out
}

func (r *runner) allocated() uint64 {
	metrics.Read(r.heap)
	return r.heap[0].Value.Uint64()
}

// mutate runs the target for n mutations of the corpus.
func (r *runner) mutate(t *testing.T, name string, n int) {
	for _, dir := range append(filepath.SplitList(os.Getenv(EnvCorpus)), filepath.Join("testdata", "fuzz", name)) {
		more, err := readCorpus(dir, r.fn.Type())
		if err != nil {
			t.Fatal(err)
		}
		r.corpus = append(r.corpus, more...)
	}
	m := newMutator(seed.New(t), r.corpus, zeros(r.fn.Type()))
	began := processTime()
	args := make([]reflect.Value, r.fn.Type().NumIn())
	args[0] = reflect.ValueOf(t)
	for i := range n {
		in := m.next()
		for k, v := range in {
			args[k+1] = reflect.ValueOf(v)
		}
		if !r.one(t, name, args, in) {
			fmt.Printf("fuzz: %s inputs=%d seconds=%.3f largest=%d failed\n", name, i+1, (processTime() - began).Seconds(), r.largest)
			return
		}
	}
	fmt.Printf("fuzz: %s inputs=%d seconds=%.3f largest=%d\n", name, n, (processTime() - began).Seconds(), r.largest)
}

// processTime returns the CPU time of this process, which excludes other work of the machine.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// one runs the target for one input, and keeps the input if it fails, panics or ends the test.
func (r *runner) one(t *testing.T, name string, args []reflect.Value, in []any) bool {
	ended := false
	defer func() {
		if ended && !t.Failed() {
			return
		}
		file, err := writeInput(filepath.Join("testdata", "fuzz", name), in)
		if err != nil {
			t.Error(err)
		}
		t.Logf("the input is kept in %s", file)
		fmt.Printf("fuzz: %s failed: %s\n", name, file)
	}()
	r.checked(args)
	ended = true
	return !t.Failed()
}

// values returns the input among the arguments of a target.
func values(args []reflect.Value) []any {
	in := make([]any, 0, len(args)-1)
	for _, v := range args[1:] {
		in = append(in, v.Interface())
	}
	return in
}

// zeros returns an input of zero values. Bytes are empty, not nil, as F.Fuzz passes them.
func zeros(fn reflect.Type) []any {
	var in []any
	for i := 1; i < fn.NumIn(); i++ {
		v := reflect.Zero(fn.In(i)).Interface()
		if _, ok := v.([]byte); ok {
			v = []byte{}
		}
		in = append(in, v)
	}
	return in
}
