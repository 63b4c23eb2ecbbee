package build

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
)

// Files of the images entry: OCI image archives, made from the machines' Debian without any registry.
const (
	BusyboxImage = "busybox.tar"
	PythonImage  = "python.tar"
)

// applets of busybox that the images link to.
var applets = strings.Fields("awk basename cat chmod chown cmp cp cut date dd df dirname du echo env expr false find free " +
	"grep gunzip gzip head hexdump hostname id kill ln ls md5sum mkdir mknod mktemp mount mv nc nproc od printf ps pwd " +
	"readlink realpath rm rmdir sed seq sh sha256sum sleep sort split stat sync tail tar tee test time timeout top " +
	"touch tr true truncate umount uname uniq uptime usleep vi wc wget which whoami xargs yes zcat")

// Images returns the entry with the test images: busybox.tar (busybox and its applets) and
// python.tar (the same plus Debian's minimal Python).
func Images(ctx context.Context, c cache.Dir, p *Progress, debian *cache.Entry) (*cache.Entry, error) {
	key := cache.KeyOf("3", filepath.Base(debian.Path), strings.Join(applets, " "))
	return c.Get("images", key, func(dir string) error {
		return p.step("container images", func() error { return makeImages(ctx, dir, debian.File(debianRoot)) })
	})
}

func makeImages(ctx context.Context, dir, root string) error {
	busybox := newLayer()
	if err := addBase(busybox, root); err != nil {
		return err
	}
	if err := writeImage(filepath.Join(dir, BusyboxImage), "localhost/busybox:latest", busybox); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	python := newLayer()
	if err := addBase(python, root); err != nil {
		return err
	}
	if err := addPython(python, root); err != nil {
		return err
	}
	return writeImage(filepath.Join(dir, PythonImage), "localhost/python:latest", python)
}

func addBase(l *layer, root string) error {
	for _, d := range []string{"bin", "data", "dev", "etc", "proc", "root", "sys", "task"} {
		l.folder(d, 0o755)
	}
	l.folder("tmp", 0o1777)
	l.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
	l.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
	if err := l.copy(root, "usr/bin/busybox", "bin/busybox"); err != nil {
		return err
	}
	for _, a := range applets {
		l.link("bin/"+a, "busybox")
	}
	return l.err
}

// addPython adds the interpreter, its library (with Debian's compiled files, because compiling is
// slow on an emulated CPU), and the shared libraries that these need.
func addPython(l *layer, root string) error {
	version, err := os.Readlink(filepath.Join(root, "usr/bin/python3"))
	if err != nil {
		return err
	}
	l.folder("usr", 0o755)
	l.folder("usr/bin", 0o755)
	l.folder("usr/lib", 0o755)
	l.link("usr/bin/python3", version)
	l.link("lib", "usr/lib")
	l.link("lib64", "usr/lib64")
	program := "usr/bin/" + version
	if err := l.copy(root, program, program); err != nil {
		return err
	}
	binaries := []string{program}
	library := "usr/lib/" + version
	err = fs.WalkDir(os.DirFS(root), library, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			l.folder(p, 0o755)
			return nil
		case !d.Type().IsRegular() || isExcluded(p):
			return nil
		case strings.Contains(filepath.Base(p), ".so"):
			binaries = append(binaries, p)
		}
		return l.copy(root, p, p)
	})
	if err != nil {
		return err
	}
	return addLibraries(l, root, binaries)
}

// isExcluded reports whether a file is left out because no test needs it and it would double the
// image's size: TLS, and all but the usual encodings.
func isExcluded(path string) bool {
	name, folder := filepath.Base(path), filepath.Dir(path)
	switch {
	case strings.HasPrefix(name, "_ssl.") || strings.HasPrefix(name, "_hashlib."):
		return true
	case strings.HasSuffix(folder, "/encodings") || strings.HasSuffix(folder, "/encodings/__pycache__"):
		encoding, _, _ := strings.Cut(name, ".")
		return !slices.Contains([]string{"__init__", "aliases", "ascii", "latin_1", "utf_8", "utf_8_sig", "utf_16"}, encoding)
	default:
		return false
	}
}

// addLibraries adds the shared libraries and the loader that the binaries need, transitively.
func addLibraries(l *layer, root string, binaries []string) error {
	folders := []string{"usr/lib64", "usr/lib/x86_64-linux-gnu"} // the loader's path is in the first
	for _, f := range folders {
		l.folder(f, 0o755)
	}
	seen := map[string]bool{}
	want := []string{"ld-linux-x86-64.so.2"}
	for len(binaries) > 0 || len(want) > 0 {
		for _, b := range binaries {
			f, err := elf.Open(filepath.Join(root, b))
			if err != nil {
				return fmt.Errorf("%s: %w", b, err)
			}
			needed, err := f.ImportedLibraries()
			f.Close()
			if err != nil {
				return fmt.Errorf("%s: %w", b, err)
			}
			want = append(want, needed...)
		}
		binaries = nil
		slices.Sort(want)
		for _, name := range slices.Compact(want) {
			if seen[name] {
				continue
			}
			seen[name] = true
			i := slices.IndexFunc(folders, func(f string) bool {
				_, err := os.Stat(filepath.Join(root, f, name))
				return err == nil
			})
			if i < 0 {
				return fmt.Errorf("no library %s in the root file system", name)
			}
			real, err := filepath.EvalSymlinks(filepath.Join(root, folders[i], name))
			if err != nil {
				return err
			}
			inside, err := filepath.Rel(root, real)
			if err != nil {
				return err
			}
			if err := l.copy(root, inside, filepath.Join(folders[i], name)); err != nil {
				return err
			}
			binaries = append(binaries, inside)
		}
		want = nil
	}
	return nil
}

// layer is a tar archive of an image's files. It is uncompressed, because unpacking is slow on an
// emulated CPU. Owners are fixed. Times are those of the files, because Python's compiled files
// contain the times of their sources. Equal files have an equal digest.
type layer struct {
	b     bytes.Buffer
	w     *tar.Writer
	err   error // the first one
	names map[string]bool
}

func newLayer() *layer {
	l := &layer{names: map[string]bool{}}
	l.w = tar.NewWriter(&l.b)
	return l
}

func (l *layer) add(h *tar.Header, data []byte) {
	if l.err != nil || l.names[h.Name] {
		return
	}
	l.names[h.Name] = true
	h.Size = int64(len(data))
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	if l.err = l.w.WriteHeader(h); l.err == nil {
		_, l.err = l.w.Write(data)
	}
}

func (l *layer) folder(name string, mode int64) {
	l.add(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (l *layer) link(name, target string) {
	l.add(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

func (l *layer) text(name, content string) {
	l.add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content))
}

// copy adds the file from of a root file system under the name to.
func (l *layer) copy(root, from, to string) error {
	path := filepath.Join(root, from)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	i, err := os.Stat(path)
	if err != nil {
		return err
	}
	l.add(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: int64(i.Mode().Perm()), ModTime: i.ModTime().Truncate(time.Second)}, b)
	return l.err
}

// descriptor refers to a blob of an OCI image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// writeImage writes an OCI image archive with one layer.
func writeImage(path, name string, l *layer) error {
	if err := errors.Join(l.err, l.w.Close()); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	put := func(name string, b []byte) {
		if err == nil {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: time.Unix(0, 0)})
		}
		if err == nil {
			_, err = w.Write(b)
		}
	}
	blob := func(mediaType string, b []byte) descriptor {
		sum := sha256.Sum256(b)
		digest := hex.EncodeToString(sum[:])
		put("blobs/sha256/"+digest, b)
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(b)}
	}
	toJSON := func(v any) []byte {
		b, jerr := json.Marshal(v)
		err = errors.Join(err, jerr)
		return b
	}
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	data := blob("application/vnd.oci.image.layer.v1.tar", l.b.Bytes())
	config := blob("application/vnd.oci.image.config.v1+json", toJSON(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/usr/bin:/bin"}, "Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{data.Digest}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", toJSON(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []descriptor{data},
	}))
	_, tag, _ := strings.Cut(name, ":")
	manifest.Annotations = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
	put("index.json", toJSON(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{manifest}}))
	return errors.Join(err, w.Close(), f.Close())
}
