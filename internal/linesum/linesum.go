// Package linesum gives each line of a JSON-lines file a checksum, so that readers detect a bit
// flipped on the disk.
//
// The checksum is the first member of the line's object. It is the CRC-32C of the object without
// it:
//
//	{"a":1}   becomes   {"crc32c":"cff7d56a","a":1}
//
// Readers that do not know the checksum ignore it like any unknown member. Lines written before
// there were checksums have none, and are accepted without.
package linesum

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/internal/fault"
)

const (
	prefix = `{"crc32c":"`
	suffix = `",` // after the eight digits of the sum
	digits = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal returns the object with its checksum. The object must have a member, and contain no newline.
func Seal(object []byte) []byte {
	sealed := make([]byte, 0, len(prefix)+digits+len(suffix)+len(object))
	sealed = fmt.Appendf(sealed, "%s%08x%s", prefix, crc32.Checksum(object, castagnoli), suffix)
	return append(sealed, object[1:]...)
}

// Sealed reports whether the line has a checksum.
func Sealed(line []byte) bool { return bytes.HasPrefix(line, []byte(prefix)) }

// Begins reports whether text is the beginning of a checksum, as in a line that was cut short after
// a few bytes, or before the first.
func Begins(text []byte) bool { return bytes.HasPrefix([]byte(prefix), text) }

// Check returns fault.Corrupt if the line has a checksum that does not match. The line may end with
// its newline. O(bytes).
func Check(line []byte) error {
	if !Sealed(line) {
		return nil
	}
	line = bytes.TrimRight(line, "\r\n")
	head := len(prefix) + digits + len(suffix)
	if len(line) < head {
		return fault.New(fault.Corrupt, "the line is cut short")
	}
	sum := crc32.Update(crc32.Checksum([]byte("{"), castagnoli), castagnoli, line[head:])
	if want := fmt.Sprintf("%s%08x%s", prefix, sum, suffix); want != string(line[:head]) {
		return fault.New(fault.Corrupt, "the line is damaged: it does not have the checksum %q that it says", line[len(prefix):len(prefix)+digits])
	}
	return nil
}

// Marshal returns a file of one line: v as JSON, with its checksum. v must have a member.
func Marshal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(Seal(b), '\n'), nil
}

// Unmarshal reads a file that Marshal wrote, or a file of JSON from before there were checksums. It
// returns fault.Corrupt for any other file. The caller adds the cure.
func Unmarshal(b []byte, v any) error {
	if err := Check(b); err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fault.New(fault.Corrupt, "it is no JSON: %w", err)
	}
	return nil
}

// Damage describes one damaged line of a file.
type Damage struct {
	File string
	Line int // from 1
	What string
}

func (d Damage) String() string { return fmt.Sprintf("line %d of %s: %s", d.Line, d.File, d.What) }

// Scanner reads the lines of a file and collects those that are damaged.
type Scanner struct {
	Damaged []Damage
	Bytes   int64 // of the lines that end, whole or damaged

	name   string
	r      *bufio.Reader
	n      int
	sealed bool // a line with a checksum has occurred
}

// NewScanner returns a scanner; name is the file's, for Damage.
func NewScanner(r io.Reader, name string) *Scanner {
	return &Scanner{name: name, r: bufio.NewReaderSize(r, 64<<10)}
}

// Next returns the next intact line, without its newline, and io.EOF after the last one. A line
// without a checksum is intact if it is JSON and no line before it had a checksum: an earlier
// version wrote it.
func (s *Scanner) Next() ([]byte, error) {
	for {
		line, err := s.r.ReadBytes('\n')
		if len(line) > 0 {
			s.n++
		}
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				s.damaged("the line has no end")
			}
			return nil, err
		}
		s.Bytes += int64(len(line))
		if s.whole(line) {
			return line[:len(line)-1], nil
		}
	}
}

func (s *Scanner) whole(line []byte) bool {
	err := Check(line)
	switch {
	case err != nil:
		s.damaged(err.Error())
	case Sealed(line):
		s.sealed = true
		return true
	case s.sealed:
		s.damaged("the line has no checksum, though those before it have")
	case json.Valid(line):
		return true
	default:
		s.damaged("the line is no JSON")
	}
	return false
}

func (s *Scanner) damaged(what string) {
	s.Damaged = append(s.Damaged, Damage{s.name, s.n, what})
}

// CheckFile returns the damaged lines of a file; none if there is no such file. O(bytes).
func CheckFile(path string) ([]Damage, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := NewScanner(f, filepath.Base(path))
	for {
		if _, err := s.Next(); errors.Is(err, io.EOF) {
			return s.Damaged, nil
		} else if err != nil {
			return s.Damaged, fmt.Errorf("%s: %w", path, err)
		}
	}
}
