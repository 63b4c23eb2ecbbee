package run

import (
	"bytes"
	"fmt"
	"os"
)

// processState returns the letter of a process's state in /proc: R, S, D, T (stopped), Z.
func processState(pid int) (byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseState(b)
}

// parseState finds the state in a stat file: the letter behind the last bracket of the program's name, which may
// itself hold anything.
func parseState(stat []byte) (byte, error) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return 0, fmt.Errorf("not a stat file: %.80q", stat)
	}
	return stat[i+2], nil
}
