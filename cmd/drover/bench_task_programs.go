package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// programCost is what the processes of one program used that ended during a half of a
// round. A process has the name of the last program that it executed: runc's init that of
// the task's command.
type programCost struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	CPUUS int64  `json:"cpu_us"`
}

// countPrograms runs work and returns what the processes used that ended meanwhile, on the
// whole machine, by the kernel's process accounting. It switches off accounting that was on
// before. Without accounting in the kernel it returns none.
func countPrograms(dir string, work func() error) ([]programCost, error) {
	file := filepath.Join(dir, "acct")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, err
	}
	switch err := unix.Acct(file); {
	case errors.Is(err, unix.ENOSYS):
		return nil, work()
	case err != nil:
		return nil, fmt.Errorf("process accounting: %w", err)
	}
	err := work()
	if _, _, e := unix.Syscall(unix.SYS_ACCT, 0, 0, 0); e != 0 { // unix.Acct cannot pass no file
		err = errors.Join(err, fmt.Errorf("end of process accounting: %w", e))
	}
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parsePrograms(b)
}

// acctRecord is struct acct_v3 of the kernel.
type acctRecord struct {
	Flag, Version                       uint8
	TTY                                 uint16
	ExitCode, UID, GID, PID, PPID, Born uint32
	Elapsed                             float32
	User, System                        uint16 // compressed, in units of userTick
	Memory, Chars, Blocks               uint16
	MinorFaults, MajorFaults, Swaps     uint16
	Name                                [16]byte
}

// parsePrograms sums the records of an accounting file by program, the most expensive first.
func parsePrograms(b []byte) ([]programCost, error) {
	by := map[string]*programCost{}
	size := binary.Size(acctRecord{})
	for ; len(b) >= size; b = b[size:] {
		var r acctRecord
		if _, err := binary.Decode(b, binary.NativeEndian, &r); err != nil {
			return nil, err
		}
		if r.Version&0x0f != 3 {
			return nil, fault.New(fault.Unsupported, "process accounting of version %d: only version 3 is read", r.Version&0x0f)
		}
		raw, _, _ := bytes.Cut(r.Name[:], []byte{0})
		name := strings.ToValidUTF8(string(raw), "\uFFFD")
		p := by[name]
		if p == nil {
			p = &programCost{Name: name}
			by[name] = p
		}
		p.Count++
		p.CPUUS += (acctTime(r.User) + acctTime(r.System)).Microseconds()
	}
	var all []programCost
	for _, p := range by {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b programCost) int {
		if a.CPUUS != b.CPUUS {
			return int(b.CPUUS - a.CPUUS)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all, nil
}

// acctTime decodes comp_t: 3 bits of exponent to the base 8, 13 bits of mantissa.
func acctTime(v uint16) time.Duration {
	return time.Duration(v&0x1fff) << (3 * (v >> 13)) * userTick
}

// programRows returns a row for each program of either side: processes and CPU time per task,
// means of all rounds, the most expensive first.
func programRows(rounds []taskRound) [][]string {
	type sum struct{ count, cpu [2]int64 }
	by, tasks := map[string]*sum{}, int64(0)
	for _, r := range rounds {
		tasks += int64(r.Tasks)
		for side, c := range []taskCost{r.Ctr, r.Drover} {
			for _, p := range c.Programs {
				if by[p.Name] == nil {
					by[p.Name] = &sum{}
				}
				by[p.Name].count[side] += int64(p.Count)
				by[p.Name].cpu[side] += p.CPUUS
			}
		}
	}
	var names []string
	for n, s := range by {
		if 4*max(s.count[0], s.count[1]) >= tasks { // not what ran by chance
			names = append(names, n)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := by[a].cpu[0]+by[a].cpu[1], by[b].cpu[0]+by[b].cpu[1]; x != y {
			return int(y - x)
		}
		return strings.Compare(a, b)
	})
	var rows [][]string
	for _, n := range names {
		row := []string{n}
		for side := range 2 {
			s := by[n]
			row = append(row, fmt.Sprintf("%.1f", float64(s.count[side])/float64(tasks)), medianText([]int64{s.cpu[side] / tasks}))
		}
		rows = append(rows, row)
	}
	return rows
}
