package simcluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// runtimePatches change Go itself for an exact simulation. What they take from it is what no seed decides
// otherwise: which ready case a select takes, which of the timers of an instant fires first, the order of maps, and
// that a goroutine is put behind the others after some time of the machine.
var runtimePatches = []mutation{
	{"the state of a bubble's choices", "runtime/synctest.go",
		"\ttotal   int // total goroutines\n", "\trand    uint64\n\tchans   uintptr\n\ttotal   int // total goroutines\n"},
	{"each bubble begins at the seed", "runtime/synctest.go",
		"\tbubble.now = synctestBaseTime\n", "\tbubble.now, bubble.rand = synctestBaseTime, simulationSeed\n\tgp.m.p.ptr().schedtick = 0\n"},
	{"maps of all processes have the same order", "runtime/rand.go",
		"\tglobalRand.state.Init(*seed)\n", "\tglobalRand.state.Init([32]byte{1})\n"},
	{"the state and the seed of a simulation", "runtime/rand.go",
		"func maps_rand() uint64 {\n", `//go:linkname simulationSeed
var simulationSeed uint64

// simulationState changes with each choice.
//
//go:linkname simulationState
func simulationState() uint64 {
	if b := getg().bubble; b != nil {
		return b.rand
	}
	return 0
}

// next is SplitMix64; its result is below n.
func (b *synctestBubble) next(n uint32) uint32 {
	b.rand += 0x9e3779b97f4a7c15
	z := b.rand
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint32(uint64(uint32(z^z>>31)) * uint64(n) >> 32)
}

func maps_rand() uint64 {
`},
	{"the seed decides the order of maps", "runtime/rand.go",
		"func rand() uint64 {\n", `func rand() uint64 {
	if simulationSeed != 0 && getg().bubble != nil {
		return simulationSeed * 0x9e3779b97f4a7c15
	}
	return trueRand()
}

//go:linkname trueRand
//go:nosplit
func trueRand() uint64 {
`},
	{"names of temporary files stay random", "os/tempfile.go",
		"//go:linkname runtime_rand runtime.rand\n", "//go:linkname runtime_rand runtime.trueRand\n"},
	{"and the global sources", "math/rand/v2/rand.go",
		"//go:linkname runtime_rand runtime.rand\n", "//go:linkname runtime_rand runtime.trueRand\n"},
	{"of both packages", "math/rand/rand.go",
		"//go:linkname runtime_rand runtime.rand\n", "//go:linkname runtime_rand runtime.trueRand\n"},
	{"the seed decides between the cases of a select", "runtime/select.go",
		"\t\tj := cheaprandn(uint32(norder + 1))\n", `		j := uint32(0)
		if simulationSeed != 0 && gp.bubble != nil {
			j = gp.bubble.next(uint32(norder + 1))
		} else {
			j = cheaprandn(uint32(norder + 1))
		}
`},
	// A select adds the timers of its channels to the heap of timers, and removes them, in the order in which it locks
	// the channels. Each timer that is added makes a choice; one whose removed entry is still in the heap makes none,
	// and adding another timer may clean that entry away first. So the order of locks decides how many choices are made.
	// In Go it is the order of addresses, which differ from one process to another.
	{"channels are numbered", "runtime/chan.go",
		"\tbubble   *synctestBubble\n", "\tbubble   *synctestBubble\n\tborn     uintptr\n"},
	{"a channel takes the next number", "runtime/chan.go",
		"\t\tc.bubble = b\n", "\t\tc.bubble = b\n\t\tb.chans++\n\t\tc.born = b.chans\n"},
	{"a select locks its channels in their order", "runtime/select.go",
		"func (c *hchan) sortkey() uintptr {\n", "func (c *hchan) sortkey() uintptr {\n\tif c.born != 0 {\n\t\treturn c.born\n\t}\n"},
	{"the seed decides between the timers of an instant", "runtime/time.go",
		"\t\t\tt.rand = cheaprand()\n", `			t.rand = cheaprand()
			if simulationSeed != 0 {
				t.rand = getg().bubble.next(1<<32 - 1)
			}
`},
	{"a goroutine runs until it waits", "runtime/proc.go",
		"func retake(now int64) uint32 {\n", "func retake(now int64) uint32 {\n\tif simulationSeed != 0 {\n\t\treturn 0\n\t}\n"},
	{"a goroutine that lets others go first is not taken before them, which other threads' work decides", "runtime/proc.go",
		"if pp.schedtick%61 == 0 && ", "if simulationSeed == 0 && pp.schedtick%61 == 0 && "},
	{"who waits for a mutex for a millisecond of the machine's time does not get it sooner", "internal/sync/mutex.go",
		"starvationThresholdNs = 1e6", "starvationThresholdNs = 1e18"},
	// These maps have addresses as keys.
	{"contexts are numbered", "context/context.go",
		"\tchildren map[canceler]struct{} //", "\tborn     uint64\n\tchildren map[canceler]uint64 //"},
	{"their map has the numbers", "context/context.go",
		"make(map[canceler]struct{})", "make(map[canceler]uint64)"},
	{"a context takes the next number", "context/context.go",
		"\t\t\tp.children[child] = struct{}{}\n", "\t\t\tp.born++\n\t\t\tp.children[child] = p.born\n"},
	{"contexts are cancelled in their order", "context/context.go",
		"\tfor child := range c.children {\n", `	for len(c.children) > 0 {
		var child canceler
		for other, born := range c.children {
			if child == nil || born < c.children[child] {
				child = other
			}
		}
		delete(c.children, child)
`},
	{"connections of a server are numbered", "net/http/server.go",
		"\tactiveConn map[*conn]struct{}\n", "\taccepted   uint64\n\tactiveConn map[*conn]uint64\n"},
	{"their map has the numbers", "net/http/server.go",
		"make(map[*conn]struct{})", "make(map[*conn]uint64)"},
	{"a connection takes the next number", "net/http/server.go",
		"\t\ts.activeConn[c] = struct{}{}\n", "\t\ts.accepted++\n\t\ts.activeConn[c] = s.accepted\n"},
	{"connections are closed in their order", "net/http/server.go",
		"\tfor c := range s.activeConn {\n\t\tc.rwc.Close()\n", "\tfor _, c := range s.inOrder() {\n\t\tc.rwc.Close()\n"},
	{"idle connections are closed in their order", "net/http/server.go",
		"\tfor c := range s.activeConn {\n\t\tst, unixSec", "\tfor _, c := range s.inOrder() {\n\t\tst, unixSec"},
	{"the order of connections", "net/http/server.go",
		"func (s *Server) trackConn(", `func (s *Server) inOrder() (all []*conn) {
	for c := range s.activeConn {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conn) int { return int(s.activeConn[a]) - int(s.activeConn[b]) })
	return all
}

func (s *Server) trackConn(`},
}

// writeOverlay writes an overlay for the go command, by which the runtime is patched and the mutated files replace
// the product's, and returns its file.
func writeOverlay(dir string, mutated ...mutation) (string, error) {
	texts := map[string][]byte{}
	apply := func(root string, m mutation) error {
		path := filepath.Join(root, m.file)
		text, ok := texts[path]
		if !ok {
			var err error
			if text, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		text, err := m.mutate(text)
		texts[path] = text
		return err
	}
	goRoot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("where Go is: %w", err)
	}
	for _, p := range runtimePatches {
		if err := apply(filepath.Join(strings.TrimSpace(string(goRoot)), "src"), p); err != nil {
			return "", err
		}
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	for _, m := range mutated {
		if err := apply(top, m); err != nil {
			return "", err
		}
	}
	replace := map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(texts)) {
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(replace[path], texts[path], 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o600)
}

// compileExact compiles the tests of this package, with mutations of the product, for exact simulations.
func compileExact(dir string, mutated ...mutation) (program string, err error) {
	overlay, err := writeOverlay(dir, mutated...)
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "simulation")
	if out, err := exec.Command("go", "test", "-c", "-tags", "exact", "-o", program, "-overlay", overlay, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile: %w: %s", err, out)
	}
	return program, nil
}

// patchedGo is the version of Go that runtimePatches are of.
const patchedGo = "go1.26"

// TestRuntimePatchesApply keeps the patches in line with Go.
func TestRuntimePatchesApply(t *testing.T) {
	if v := runtime.Version(); !strings.HasPrefix(v, patchedGo) {
		t.Skipf("not proved here: that the patches of Go's runtime apply; they are of %s, and this is %s", patchedGo, v)
	}
	if _, err := writeOverlay(t.TempDir()); err != nil {
		t.Error(err)
	}
}

// historyLine is what a simulation says of its history.
var historyLine = regexp.MustCompile(`history [0-9a-f]{16}`)

// exactVar is the folder for the program of exact simulations.
const exactVar = "DROVER_EXACT"

func exactProgram(t *testing.T) string {
	dir := os.Getenv(exactVar)
	if dir == "" {
		t.Skipf("not proved here: that a seed has the same history each time; it compiles Go's runtime, set %s to a folder", exactVar)
	}
	program, err := compileExact(dir)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// TestCompileExact leaves the program of exact simulations in its folder.
func TestCompileExact(t *testing.T) { exactProgram(t) }

// TestExactReplay runs each seed twice, in processes of its own: all that happens is to be the same, at the same
// virtual instants. Two runs may agree by luck, so TestChoicesIgnoreAddresses forces a cause of differences.
func TestExactReplay(t *testing.T) {
	program, all := exactProgram(t), seeds(t)
	if out, err := exec.Command(program, "-test.run", "^TestChoicesIgnoreAddresses$").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	same := 0
	for _, s := range all {
		var runs [2][]byte
		for i := range runs {
			cmd := exec.Command(program, "-test.run", "^TestSimulatedCluster$", "-test.v", "-test.timeout", "10m")
			cmd.Env = append(os.Environ(), fmt.Sprint("RAPID_SEED=", s), simulationsVar+"=1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("seed %d: %v\n%s", s, err, out)
			}
			runs[i] = historyLine.Find(out)
		}
		if runs[0] == nil || !bytes.Equal(runs[0], runs[1]) {
			t.Errorf("seed %d: %s, then %s", s, runs[0], runs[1])
			continue
		}
		same++
	}
	t.Logf("%d of %d seeds have the same history twice", same, len(all))
}
