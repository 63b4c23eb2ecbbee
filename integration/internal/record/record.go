// Package record writes the output of a benchmark as a Markdown page that names time, machine,
// commit and command: the pages of docs/measured.
package record

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/filesystem"
)

// Measurement is one run of a part of the benchmarks.
type Measurement struct {
	Part    string // name of the part, the page's title
	Command string // command that repeats the measurement
	At      time.Time
	Commit  string // of the repository; ends in "-dirty" with uncommitted changes
	Machine Machine
	Output  string // of the command
	Failed  bool   // the command failed or missed a target
}

// Machine describes where a benchmark ran.
type Machine struct {
	cpu       string // model
	cores     int    // that this process may use
	memoryMB  int64  // MiB
	kernel    string
	goVersion string
	load      float64 // 1-minute load average at the end

	// Others is the average number of processors that other work used meanwhile; UnknownOthers if
	// it was not measured.
	Others float64

	filesystem string // of the folder for temporary files, in which most parts have their data
}

// UnknownOthers is the value of Machine.Others if it was not measured. Then only the load at the
// end is known.
const UnknownOthers = -1

// tolerableOthers is the fraction of all processors that other work may use before figures are not
// compared.
const tolerableOthers = 0.1

// ThisMachine describes the machine on which it runs.
func ThisMachine() (Machine, error) {
	m := Machine{cores: runtime.NumCPU(), goVersion: runtime.Version(), Others: UnknownOthers}
	cpu, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	defer cpu.Close()
	if m.cpu, err = modelName(cpu); err != nil {
		return m, err
	}
	if m.filesystem, err = filesystem.Kind(os.TempDir()); err != nil {
		return m, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("sysinfo: %w", err)
	}
	m.memoryMB = int64(uint64(info.Totalram) * uint64(info.Unit) >> 20)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.kernel = unix.ByteSliceToString(name.Release[:])
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return m, err
	}
	m.load, err = strconv.ParseFloat(strings.Fields(string(load) + " ?")[0], 64)
	return m, err
}

// modelName returns the processor's model in the form of /proc/cpuinfo.
func modelName(r io.Reader) (string, error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value), nil
		}
	}
	if err := s.Err(); err != nil {
		return "", fmt.Errorf("/proc/cpuinfo: %w", err)
	}
	return "unknown", nil
}

// filesystemRow is the name of the row of Machine.filesystem.
const filesystemRow = "temporary files"

// busyNote is the note on the pages of a machine that had other work.
const busyNote = "the machine had other work, so compare within this page only"

// busy reports whether the machine had much other work. If only the load is known, that is a guess:
// the load includes the measured program, and excludes work that ended before the last minute.
func (m Machine) busy() bool {
	if m.Others == UnknownOthers {
		return m.load > float64(m.cores)+1
	}
	return m.Others > tolerableOthers*float64(m.cores)
}

// row returns the description of the machine on the pages.
func (m Machine) row() string {
	return strings.ReplaceAll(fmt.Sprintf("%s, %d cores, %d MiB", m.cpu, m.cores, m.memoryMB), "|", `\|`)
}

// The text before and after the command on a page.
const (
	beforeCommand = "\nWritten by `"
	afterCommand  = "`; do not edit.\n"
)

// Page returns the measurement as Markdown.
func Page(m Measurement) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Measured: %s\n%s%s%s\n", m.Part, beforeCommand, m.Command, afterCommand)
	b.WriteString("| | |\n| --- | --- |\n")
	row := func(k, v string) { fmt.Fprintf(&b, "| %s | %s |\n", k, strings.ReplaceAll(v, "|", `\|`)) }
	row("date", m.At.UTC().Format(time.RFC3339))
	row("commit", m.Commit)
	fmt.Fprintf(&b, "| machine | %s |\n", m.Machine.row())
	row("kernel, Go", m.Machine.kernel+", "+m.Machine.goVersion)
	load := fmt.Sprintf("%.1f at the end", m.Machine.load)
	if m.Machine.Others != UnknownOthers {
		load += fmt.Sprintf("; other work had %.2f processors meanwhile", m.Machine.Others)
	}
	if m.Machine.busy() {
		load += ": " + busyNote
	}
	row("load", load)
	row(filesystemRow, m.Machine.filesystem)
	result := "completed"
	if m.Failed {
		result = "failed, or missed a target: see the output"
	}
	row("result", result)
	fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimRight(strings.ReplaceAll(m.Output, "```", "'''"), "\n"))
	return b.String()
}
