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
	bareLimit   = 5 * time.Minute // of one dump or restore
	bareHoldArg = "hold-memory"
	barePage    = 4096
	bareChunk   = 256 * barePage // of memory in one piece; read at once
	bareStride  = bareChunk + barePage
)

// bareRow is what `drover bench criu` prints: times of criu alone, microseconds.
type bareRow struct {
	Memory  int64   `json:"memory_bytes"`
	Image   int64   `json:"image_bytes"`
	Dump    []int64 `json:"dump_us"`
	Restore []int64 `json:"restore_us"`
}

func benchCriuCommand() *cli.Command {
	return &cli.Command{
		Name:  "criu",
		Usage: "how fast criu alone dumps and restores a process on this machine (root)",
		Description: "It starts a process that holds memory, dumps it with criu and restores it, again and again: what\n" +
			"`drover bench suspend -criu FILE` is held against. FILE is what this prints with -json.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "memory", Value: "100MiB", Usage: "that the process holds"},
			&cli.IntFlag{Name: "rounds", Value: 3, Usage: "of dump and restore"},
			&cli.StringFlag{Name: "dir", Usage: "folder for the images, on the disk to be measured; default: a temporary one"},
			jsonFlag,
		},
		Subcommands: []*cli.Command{{Name: bareHoldArg, Hidden: true, HideHelp: true, Action: holdMemory}},
		Action:      benchCriu,
	}
}

// holdMemory maps memory, fills it (see fillMemory), says where it is by closing
// standard output after its address, and sleeps: what it costs the machine while
// criu works is nothing. The memory lies in pieces of bareChunk with a page
// between them that cannot be read, as malloc of a C library lays out large
// pieces and as the task has it that `drover bench suspend` is shown with: in one
// piece it would be of huge pages and of one mapping, and criu quicker with it
// than with any task like that.
func holdMemory(c *cli.Context) error {
	n, err := strconv.Atoi(c.Args().First())
	if err != nil || n <= 0 {
		return usage("%s takes a number of bytes", bareHoldArg)
	}
	b, err := unix.Mmap(-1, 0, spread(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // the collector never looks at it
	if err != nil {
		return fault.New(fault.Exhausted, "hold %s: %w", jobspec.FormatSize(int64(n)), err)
	}
	for at := 0; at < n; at += bareChunk {
		from := spread(at)
		fillMemory(b[from:from+min(bareChunk, n-at)], int64(at))
		if from += bareChunk; from < len(b) {
			if err := unix.Mprotect(b[from:from+barePage], unix.PROT_NONE); err != nil {
				return fault.New(fault.Exhausted, "hold %s in pieces: %w", jobspec.FormatSize(int64(n)), err)
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

// spread is where byte at of the memory lies, from its start.
func spread[T int | int64](at T) T { return at/bareChunk*bareStride + at%bareChunk }

// fillMemory makes each page of b a copy of one page of random words, but for
// its first word, which is the page's number: no page is empty, no two are
// alike, and it is done at the speed of copying. b is what lies at a multiple of
// barePage from the start of the memory, the pages between its pieces not counted.
func fillMemory(b []byte, at int64) {
	page := randomPage()
	for ; len(b) > 0; at += barePage {
		n := copy(b, page)
		if n >= 8 {
			binary.LittleEndian.PutUint64(b, uint64(at/barePage))
		}
		b = b[n:]
	}
}

// randomPage is the same page in every process.
func randomPage() []byte {
	page := make([]byte, 0, barePage)
	for r := rand.NewPCG(1, 2); len(page) < barePage; {
		page = binary.LittleEndian.AppendUint64(page, r.Uint64())
	}
	return page
}

// holder is the process that holds memory.
type holder struct {
	pid   int
	start int64 // of the memory, in its address space
	bytes int64
}

// verify reads all of the memory and holds it against what it was filled with.
func (h holder) verify() error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", h.pid))
	if err != nil {
		return err
	}
	defer f.Close()
	got, want := make([]byte, bareChunk), make([]byte, bareChunk)
	for at := int64(0); at < h.bytes; at += bareChunk {
		n := min(bareChunk, h.bytes-at)
		if _, err := f.ReadAt(got[:n], h.start+spread(at)); err != nil {
			return err
		}
		if fillMemory(want[:n], at); !bytes.Equal(got[:n], want[:n]) {
			return fault.New(fault.Corrupt, "criu brought process %d back with other memory, from byte %d of %d on", h.pid, at, h.bytes)
		}
	}
	return nil
}

func benchCriu(c *cli.Context) error {
	if _, err := args(c, 0, 0, ""); err != nil {
		return err
	}
	memory, err := jobspec.ParseSize(c.String("memory"))
	if err != nil {
		return usage("-memory: %v", err)
	}
	dir, err := os.MkdirTemp(c.String("dir"), "drover-criu-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	row := &bareRow{Memory: memory}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h, err := startHolder(self, memory)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(h.pid, syscall.SIGKILL) }() // gone already after a failed restore
	for i := range c.Int("rounds") {
		image := filepath.Join(dir, strconv.Itoa(i))
		if err := row.round(c.Context, h, image); err != nil {
			return err
		}
		if err := os.RemoveAll(image); err != nil {
			return err
		}
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(row)
	}
	columns(c.App.Writer, []string{"criu alone", "rounds", "median", "p90", "max", "MB/s", "image"}, [][]string{
		{"dump", fmt.Sprint(len(row.Dump)), quantile(row.Dump, 0.5), quantile(row.Dump, 0.9), quantile(row.Dump, 1), rate(row.Image, row.Dump), jobspec.FormatSize(row.Image)},
		{"restore", fmt.Sprint(len(row.Restore)), quantile(row.Restore, 0.5), quantile(row.Restore, 0.9), quantile(row.Restore, 1), rate(row.Image, row.Restore), ""}})
	return nil
}

// startHolder starts the process, of the program that is drover, in a session of
// its own with nothing of ours open.
func startHolder(drover string, memory int64) (holder, error) {
	cmd := exec.Command(drover, "bench", "criu", bareHoldArg, strconv.FormatInt(memory, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		return holder{}, err
	}
	if err := cmd.Start(); err != nil {
		return holder{}, err
	}
	said, err := io.ReadAll(io.LimitReader(out, 64))
	start, notNumber := strconv.ParseInt(strings.TrimSpace(string(said)), 10, 64)
	if err := errors.Join(err, notNumber); err != nil {
		_ = cmd.Process.Kill()
		return holder{}, fault.New(fault.Unavailable, "the process that holds memory: %w", errors.Join(err, cmd.Wait()))
	}
	go func() { _ = cmd.Wait() }() // a dump ends it; ends with this command
	return holder{pid: cmd.Process.Pid, start: start, bytes: memory}, nil
}

func (r *bareRow) round(ctx context.Context, h holder, image string) error {
	if err := os.MkdirAll(image, 0o700); err != nil {
		return err
	}
	dump, err := criu(ctx, image, "dump", "-t", strconv.Itoa(h.pid))
	if err != nil {
		return err
	}
	r.Dump = append(r.Dump, dump.Microseconds())
	r.Image = 0
	err = filepath.WalkDir(image, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			r.Image += st.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	restore, err := criu(ctx, image, "restore", "-d")
	if err != nil {
		return err
	}
	r.Restore = append(r.Restore, restore.Microseconds())
	return h.verify()
}

// criu runs one verb of criu and gives how long it took.
func criu(ctx context.Context, image, verb string, more ...string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, bareLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "criu", append([]string{verb, "-D", image, "-o", verb + ".log"}, more...)...)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fault.New(fault.Unavailable, "criu %s: %w: %s", verb, err, oneLineOf(out))
	}
	return time.Since(began), nil
}

func oneLineOf(b []byte) string { return fmt.Sprintf("%.300q", b) }

// rate is bytes over the median of microseconds, in MB/s.
func rate(bytes int64, us []int64) string {
	m := medianOf(us)
	if m <= 0 || bytes <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", float64(bytes)/float64(m))
}
