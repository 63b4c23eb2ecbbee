package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"
)

// Identity is the name and address that a machine resumed from a saved RAM image receives on its
// second serial line.
type Identity struct {
	Name    string    `json:"name"`
	IP      string    `json:"ip"` // in a /24
	Gateway string    `json:"gateway"`
	Now     time.Time `json:"now"`
}

// Line returns the identity as sent over the serial line: blanks, a checksum, JSON. While QEMU
// still loads the RAM, the serial line already swallows some bytes. Either these are blanks, or the
// checksum fails and the line is sent again.
func (id Identity) Line() (string, error) {
	b, err := json.Marshal(id)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%64s%08x %s\n", "", crc32.ChecksumIEEE(b), b), nil
}

// ReadIdentity reads lines until one is a valid identity.
func ReadIdentity(r io.Reader) (Identity, error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		sum, text, _ := strings.Cut(strings.TrimSpace(s.Text()), " ")
		want, err := strconv.ParseUint(sum, 16, 32)
		var id Identity
		if err == nil && uint32(want) == crc32.ChecksumIEEE([]byte(text)) && json.Unmarshal([]byte(text), &id) == nil {
			return id, nil
		}
	}
	if err := s.Err(); err != nil {
		return Identity{}, fmt.Errorf("agent: serial line: %w", err)
	}
	return Identity{}, fmt.Errorf("agent: serial line: %w", io.ErrUnexpectedEOF)
}
