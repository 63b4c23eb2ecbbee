package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of `drover bench criu`.
const (
	bareLimit   = 5 * time.Minute // of one dump or restore
	bareHoldArg = "hold-memory"
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

// holdMemory fills memory with what does not compress, says so by closing
// standard output, and stays.
func holdMemory(c *cli.Context) error {
	n, err := strconv.ParseInt(c.Args().First(), 10, 64)
	if err != nil {
		return usage("%s takes a number of bytes", bareHoldArg)
	}
	b := make([]byte, n)
	sum := sha256.Sum256(nil)
	for i := 0; i < len(b); i += len(sum) {
		binary.LittleEndian.PutUint64(sum[:], uint64(i))
		sum = sha256.Sum256(sum[:])
		copy(b[i:], sum[:])
	}
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	for { // touched, so that it stays
		time.Sleep(time.Second)
		b[0]++
	}
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
	pid, err := startHolder(memory)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }() // gone already after a failed restore
	for i := range c.Int("rounds") {
		image := filepath.Join(dir, strconv.Itoa(i))
		if err := row.round(c.Context, pid, image); err != nil {
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

// startHolder starts the process in a session of its own, with nothing of ours
// open.
func startHolder(memory int64) (pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, "bench", "criu", bareHoldArg, strconv.FormatInt(memory, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // a dump ends it; ends with this command
	_, err = out.Read(make([]byte, 1))
	if err == nil || err.Error() != "EOF" {
		return 0, fault.New(fault.Unavailable, "the process that holds memory: %w", err)
	}
	return cmd.Process.Pid, nil
}

func (r *bareRow) round(ctx context.Context, pid int, image string) error {
	if err := os.MkdirAll(image, 0o700); err != nil {
		return err
	}
	dump, err := criu(ctx, image, "dump", "-t", strconv.Itoa(pid))
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
	return nil
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
