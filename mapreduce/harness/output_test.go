package harness

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/drover-run/drover/mapreduce"
)

// A full disk ends the writing, however much output is still to come.
func TestOutputOnFullDisk(t *testing.T) {
	for name, write := range map[string]func(w *outputWriter) error{
		"lines": func(w *outputWriter) error {
			for {
				if err := w.writeLine([]byte("key"), []byte("value"), false); err != nil {
					return err
				}
			}
		},
		"program": func(w *outputWriter) error { return w.copyFrom(zeros{}) },
	} {
		t.Run(name, func(t *testing.T) {
			w, err := createOutput(&mapreduce.OutputFile{Path: "/dev/full"}, &flowCounter{})
			if err != nil {
				t.Fatal(err)
			}
			if err := write(w); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%v, want %v", err, syscall.ENOSPC)
			}
			if _, err := w.close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("close: %v, want %v", err, syscall.ENOSPC)
			}
		})
	}
}

// The file of an earlier run may be in a result already, so it is replaced and not written to.
func TestOutputReplacesEarlierFile(t *testing.T) {
	dir := t.TempDir()
	path, result := filepath.Join(dir, "out"), filepath.Join(dir, "result")
	for _, text := range []string{"first", "again"} {
		w, err := createOutput(&mapreduce.OutputFile{Path: path}, &flowCounter{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.writeLine([]byte(text), nil, true); err != nil {
			t.Fatal(err)
		}
		if _, err := w.close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(path, result); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{result: "first\n", path: "again\n"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", name, b, err, want)
		}
	}
}

// zeros is a program that writes for ever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// The file contains the written lines in order, whatever their sizes, and length and checksum
// match.
func TestOutputOrder(t *testing.T) {
	for _, codec := range []mapreduce.Codec{mapreduce.CodecNone, mapreduce.CodecZstd} {
		path := filepath.Join(t.TempDir(), "out")
		w, err := createOutput(&mapreduce.OutputFile{Path: path, Codec: codec}, &flowCounter{})
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		for n := range 2000 {
			long := bytes.Repeat([]byte{byte('a' + n%26)}, n*n%3000)
			want.Write(append(append([]byte("k\t"), long...), '\n'))
			if err := w.writeLine([]byte("k"), long, false); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.copyFrom(io.LimitReader(bytes.NewReader([]byte("no newline")), 10)); err != nil {
			t.Fatal(err)
		}
		want.WriteString("no newline\n")
		stored, err := w.close()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || stored.Bytes != int64(len(b)) || stored.CRC32C != mapreduce.CRC32C(0, b) {
			t.Errorf("%v: %+v for %d bytes, %v", codec, stored, len(b), err)
		}
		text, closeText, err := decompress(bytes.NewReader(b), codec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(text)
		closeText()
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%v: %d bytes of text, want %d, %v", codec, len(got), want.Len(), err)
		}
	}
}
