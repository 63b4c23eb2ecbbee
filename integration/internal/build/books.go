package build

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/drover-run/drover/integration/internal/cache"
)

// The text of real jobs is the GNU Collaborative International Dictionary of English, 39 MB of
// prose in one package of Debian main.
const (
	textPackage = "dict-gcide"
	textFile    = "usr/share/dictd/gcide.dict.dz" // gzip
	textName    = "gcide.txt"
)

// bookMB is the size of one book; the last one may be smaller.
const bookMB = 8

// bookText returns the entry with the whole text.
func bookText(ctx context.Context, c cache.Dir, p *Progress) (*cache.Entry, error) {
	return c.Get("text", cache.KeyOf("1", textPackage, textFile), func(dir string) error {
		return p.step("text from Debian's "+textPackage, func() error { return makeText(ctx, dir) })
	})
}

func makeText(ctx context.Context, dir string) error {
	download := func() error {
		c := exec.CommandContext(ctx, "apt-get", "-q", "download", textPackage)
		c.Dir = dir
		_, err := runCommand(c)
		return err
	}
	if err := download(); err != nil { // the package lists may be missing or old
		if uerr := runAptGet(ctx, "update"); uerr != nil {
			return errors.Join(err, uerr)
		}
		if err := download(); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(dir, textPackage+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("%d packages were downloaded, want 1", len(debs))
	}
	unpacked := filepath.Join(dir, "unpacked")
	if _, err := runCommand(exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], unpacked)); err != nil {
		return err
	}
	if err := gunzip(filepath.Join(dir, textName), filepath.Join(unpacked, textFile)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(unpacked), os.Remove(debs[0]))
}

func gunzip(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, z)
	return errors.Join(err, z.Close(), out.Close())
}

// Books makes the folder books of the cache contain exactly mb MiB of text, in files of 8 MiB (the
// last one takes the rest), and returns their paths. Each file ends with a newline and, except for
// the last, is a whole number of HDFS blocks of 1 MiB.
func Books(ctx context.Context, c cache.Dir, p *Progress, mb int) ([]string, error) {
	text, err := bookText(ctx, c, p)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	lock, err := c.Lock("books", cache.LockLimit)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	want := filepath.Base(text.Path) + fmt.Sprintf(" %d MiB\n", mb)
	dir := c.Path("books")
	if have, err := os.ReadFile(filepath.Join(dir, "made-from")); err != nil || string(have) != want {
		b, err := os.ReadFile(text.File(textName))
		if err != nil {
			return nil, err
		}
		parts, err := splitBooks(b, mb)
		if err != nil {
			return nil, err
		}
		if err := writeBooks(dir, parts, want); err != nil {
			return nil, err
		}
	}
	return filepath.Glob(filepath.Join(dir, "*.txt"))
}

// writeBooks replaces the folder. It writes the file made-from last, so that an incomplete folder
// is rebuilt.
func writeBooks(dir string, parts [][]byte, madeFrom string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, b := range parts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("book-%02d.txt", i+1)), b, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "made-from"), []byte(madeFrom), 0o644)
}

// splitBooks splits the first mb MiB of a text into parts of bookMB. Each part is cut at its last
// newline and padded with newlines; the rest begins the next part.
func splitBooks(text []byte, mb int) ([][]byte, error) {
	if most := len(text) >> 20; mb < 1 || mb > most {
		return nil, fmt.Errorf("books: %d MiB requested, 1 to %d are available", mb, most)
	}
	var parts [][]byte
	for left := mb; left > 0; left -= bookMB {
		size := min(left, bookMB) << 20
		if size > len(text) {
			return nil, errors.New("books: the text is too short")
		}
		n := bytes.LastIndexByte(text[:size], '\n') + 1
		if n == 0 {
			return nil, errors.New("books: a line is longer than a book")
		}
		part := bytes.Repeat([]byte{'\n'}, size)
		copy(part, text[:n])
		parts = append(parts, part)
		text = text[n:]
	}
	return parts, nil
}
