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

// Identity makes a machine out of a saved RAM image, in which it waits for one on its second serial line.
type Identity struct {
	Name    string    `json:"name"`
	IP      string    `json:"ip"` // in a /24
	Gateway string    `json:"gateway"`
	Now     time.Time `json:"now"`
}

// Line is the identity as it goes over the serial line: blanks, a checksum, JSON. While QEMU still loads the RAM
// its serial line already swallows some bytes, which are lost: the blanks, or else the line fails its checksum and
// is sent again.
func (id Identity) Line() (string, error) {
	b, err := json.Marshal(id)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%64s%08x %s\n", "", crc32.ChecksumIEEE(b), b), nil
}

// ReadIdentity reads lines until one is a whole identity.
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
