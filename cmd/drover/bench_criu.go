package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of `drover bench criu`.
const (
	criuLimit         = 5 * time.Minute // limit for one dump or restore
	holdMemoryCommand = "hold-memory"
	pageBytes         = 4096
	chunkBytes        = 256 * pageBytes // memory in one mapping; verified in one read
	chunkStride       = chunkBytes + pageBytes
)

// criuBaseline is the output of `drover bench criu`: times of criu alone.
type criuBaseline struct {
	MemoryBytes int64   `json:"memory_bytes"`
	ImageBytes  int64   `json:"image_bytes"`
	DumpUS      []int64 `json:"dump_us"`
	RestoreUS   []int64 `json:"restore_us"`
	engineBaseline
}

func benchCriuCommand() *cli.Command {
	return &cli.Command{
		Name:  "criu",
		Usage: "how fast criu alone dumps and restores a process on this machine (root)",
		Description: "Starts a process with a given amount of memory, and repeatedly dumps it with criu and restores it. This is\n" +
			"the baseline for `drover bench suspend -criu FILE`, where FILE is the output of this command with -json.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "memory", Value: "100MiB", Usage: "memory of the process"},
			&cli.IntFlag{Name: "rounds", Value: 3, Usage: "rounds of dump and restore"},
			&cli.BoolFlag{Name: "engines", Usage: "measure also runc and ctr alone with the process in a container"},
			&cli.StringFlag{Name: "dir", Usage: "folder for the images, on the disk to be measured; default: a temporary one"},
			jsonFlag,
		},
		Subcommands: []*cli.Command{{Name: holdMemoryCommand, Hidden: true, HideHelp: true, Action: runMemoryHolder}},
		Action:      runBenchCriu,
	}
}

// runMemoryHolder maps and fills memory (see fillPattern), prints its address, closes
// standard output and sleeps, so that it costs the machine nothing while criu works.
// The memory consists of pieces of chunkBytes with an inaccessible page between them,
// as malloc of a C library lays out large blocks, and as the task of
// `drover bench suspend` has it. In one piece it would use huge pages and a single
// mapping, which criu handles faster than any such task.
func runMemoryHolder(c *cli.Context) error {
	n, err := strconv.Atoi(c.Args().First())
	if err != nil || n <= 0 {
		return usageErrorf("%s takes a number of bytes", holdMemoryCommand)
	}
	b, err := unix.Mmap(-1, 0, pieceOffset(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // not scanned by the garbage collector
	if err != nil {
		return fault.New(fault.Exhausted, "allocate %s: %w", jobspec.FormatSize(int64(n)), err)
	}
	for at := 0; at < n; at += chunkBytes {
		from := pieceOffset(at)
		fillPattern(b[from:from+min(chunkBytes, n-at)], int64(at))
		if from += chunkBytes; from < len(b) {
			if err := unix.Mprotect(b[from:from+pageBytes], unix.PROT_NONE); err != nil {
				return fault.New(fault.Exhausted, "protect the gaps of %s: %w", jobspec.FormatSize(int64(n)), err)
			}
		}
	}
	if _, err := fmt.Printf("%d\n", uintptr(unsafe.Pointer(&b[0]))); err != nil {
		return err
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}

// pieceOffset returns the offset of byte at in the mapping.
func pieceOffset[T int | int64](at T) T { return at/chunkBytes*chunkStride + at%chunkBytes }

// fillPattern makes each page of b a copy of one random page, except for its first
// word, which is the page number: no page is empty, no two are equal, and filling is
// as fast as copying. at is the offset of b in the memory, without the gaps; it must be
// a multiple of pageBytes.
func fillPattern(b []byte, at int64) {
	page := patternPage()
	for ; len(b) > 0; at += pageBytes {
		n := copy(b, page)
		if n >= 8 {
			binary.LittleEndian.PutUint64(b, uint64(at/pageBytes))
		}
		b = b[n:]
	}
}

// patternPage returns a random page, the same in every process.
func patternPage() []byte {
	page := make([]byte, 0, pageBytes)
	for r := rand.NewPCG(1, 2); len(page) < pageBytes; {
		page = binary.LittleEndian.AppendUint64(page, r.Uint64())
	}
	return page
}

// memoryHolder is a running process of runMemoryHolder.
type memoryHolder struct {
	pid     int
	address int64 // start of the memory in the process's address space
	bytes   int64
}

// verify reads the whole memory and compares it with the pattern.
func (h memoryHolder) verify() error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", h.pid))
	if err != nil {
		return err
	}
	defer f.Close()
	got, want := make([]byte, chunkBytes), make([]byte, chunkBytes)
	for at := int64(0); at < h.bytes; at += chunkBytes {
		n := min(chunkBytes, h.bytes-at)
		if _, err := f.ReadAt(got[:n], h.address+pieceOffset(at)); err != nil {
			return err
		}
		if fillPattern(want[:n], at); !bytes.Equal(got[:n], want[:n]) {
			return fault.New(fault.Corrupt, "criu restored process %d with wrong memory, from byte %d of %d on", h.pid, at, h.bytes)
		}
	}
	return nil
}

func runBenchCriu(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	memory, err := jobspec.ParseSize(c.String("memory"))
	if err != nil {
		return usageErrorf("-memory: %v", err)
	}
	if memory < pageBytes {
		return usageErrorf("-memory %s: want at least %s", c.String("memory"), jobspec.FormatSize(pageBytes))
	}
	if err := requireAtLeast(c, map[string]float64{"rounds": 1}); err != nil {
		return err
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return fmt.Errorf("%w: install criu on this machine", err)
	}
	dir, err := os.MkdirTemp(c.String("dir"), "drover-criu-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	row := &criuBaseline{MemoryBytes: memory}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h, err := startMemoryHolder(self, memory)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(h.pid, syscall.SIGKILL) }() // it no longer exists after a failed restore
	for i := range c.Int("rounds") {
		image := filepath.Join(dir, strconv.Itoa(i))
		if err := row.measureRound(c.Context, h, image); err != nil {
			return err
		}
		if err := os.RemoveAll(image); err != nil {
			return err
		}
	}
	if c.Bool("engines") {
		if err := row.measureEngines(c.Context, dir, self, memory, c.Int("rounds")); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(row)
	}
	if text := row.text(row); text != "" {
		fmt.Fprintln(c.App.Writer, text)
	}
	printTable(c.App.Writer, []string{"criu alone", "rounds", "median", "p90", "max", "MB/s", "image"}, [][]string{
		{"dump", fmt.Sprint(len(row.DumpUS)), medianText(row.DumpUS), quantileText(row.DumpUS, 0.9), quantileText(row.DumpUS, 1), throughputText(row.ImageBytes, row.DumpUS), jobspec.FormatSize(row.ImageBytes)},
		{"restore", fmt.Sprint(len(row.RestoreUS)), medianText(row.RestoreUS), quantileText(row.RestoreUS, 0.9), quantileText(row.RestoreUS, 1), throughputText(row.ImageBytes, row.RestoreUS), ""}})
	return nil
}

// startMemoryHolder starts this binary as a memory holder, in its own session and
// without open files of this process.
func startMemoryHolder(drover string, memory int64) (memoryHolder, error) {
	cmd := exec.Command(drover, "bench", "criu", holdMemoryCommand, strconv.FormatInt(memory, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		return memoryHolder{}, err
	}
	if err := cmd.Start(); err != nil {
		return memoryHolder{}, err
	}
	said, err := io.ReadAll(io.LimitReader(out, 64))
	start, notNumber := strconv.ParseInt(strings.TrimSpace(string(said)), 10, 64)
	if err := errors.Join(err, notNumber); err != nil {
		_ = cmd.Process.Kill()
		return memoryHolder{}, fmt.Errorf("start the memory holder: %w", errors.Join(err, cmd.Wait()))
	}
	go func() { _ = cmd.Wait() }() // returns after a dump, or when this command ends
	return memoryHolder{pid: cmd.Process.Pid, address: start, bytes: memory}, nil
}

func (r *criuBaseline) measureRound(ctx context.Context, h memoryHolder, image string) error {
	if err := os.MkdirAll(image, 0o700); err != nil {
		return err
	}
	dump, err := runCriu(ctx, image, "dump", "-t", strconv.Itoa(h.pid))
	if err != nil {
		return err
	}
	r.DumpUS = append(r.DumpUS, dump.Microseconds())
	r.ImageBytes = 0
	err = filepath.WalkDir(image, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			r.ImageBytes += st.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	restore, err := runCriu(ctx, image, "restore", "-d")
	if err != nil {
		return err
	}
	r.RestoreUS = append(r.RestoreUS, restore.Microseconds())
	return h.verify()
}

// runCriu runs a criu command and returns how long it took.
func runCriu(ctx context.Context, image, verb string, more ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, criuLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "criu", append([]string{verb, "-D", image, "-o", verb + ".log"}, more...)...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("criu %s: %w: %s", verb, err, joinLines(out))
	}
	return time.Since(began), nil
}

func joinLines(b []byte) string { return fmt.Sprintf("%.300q", b) }

// throughputText formats bytes over the median duration, in MB/s.
func throughputText(bytes int64, us []int64) string {
	m := medianOf(us)
	if m <= 0 || bytes <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", float64(bytes)/float64(m))
}
