package dump

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// LocalDump is a dump on this node.
type LocalDump struct {
	Token string
	Dirs  map[Root]string
	// Manifest returns the manifest in that version. The first call begins to build it, for which all files are read; a
	// call whose context ends before it is built returns Unavailable.
	Manifest func(ctx context.Context, version int) (*Manifest, error)
}

// Source finds the dump of an attempt; NotFound if there is none.
type Source interface {
	Dump(attempt string) (*LocalDump, error)
}

// Server serves dumps. It is an http.Handler for Prefix.
type Server struct {
	source Source
	slots  chan struct{}
	log    *slog.Logger
}

// busyPause is after how many seconds a client that was told that the server is busy asks again. listWait bounds a
// request for a manifest that is not built yet, well below what clients wait for a header.
const (
	busyPause = "1"
	listWait  = 10 * time.Second
)

// NewServer serves at most most requests concurrently and refuses more.
func NewServer(h Source, most int, log *slog.Logger) *Server {
	return &Server{source: h, slots: make(chan struct{}, most), log: log}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		refuseBusy(w, "too many requests at once")
		return
	}
	attempt, what, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, Prefix), "/")
	if r.Method != http.MethodGet || !ok || what != "manifest" && what != "file" && what != "data" {
		http.Error(w, "no such path", http.StatusNotFound)
		return
	}
	q := url.Values{}
	if what != "manifest" {
		q = url.Values{"root": {r.URL.Query().Get("root")}, "path": {r.URL.Query().Get("path")}}
	}
	h, err := s.source.Dump(attempt)
	if err == nil && !verifyProof(r.Header.Get("Authorization"), h.Token, signedPath(r.URL.Path, q)) {
		http.Error(w, "this is not the job's token", http.StatusUnauthorized)
		return
	}
	if err == nil && what == "manifest" {
		err = s.sendManifest(w, r, h)
	} else if err == nil {
		err = s.sendFile(w, r, h, Root(q.Get("root")), q.Get("path"), what == "data")
	}
	if err == nil {
		return
	}
	if errors.Is(err, fault.Unavailable) {
		refuseBusy(w, err.Error())
		return
	}
	status := http.StatusInternalServerError
	if errors.Is(err, fault.NotFound) || errors.Is(err, fs.ErrNotExist) {
		status = http.StatusNotFound
	} else {
		s.log.Warn("cannot serve a dump", "path", r.URL.Path, "err", err)
	}
	http.Error(w, err.Error(), status)
}

// refuseBusy tells a client to ask again.
func refuseBusy(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", busyPause)
	http.Error(w, why, http.StatusServiceUnavailable)
}

func (s *Server) sendManifest(w http.ResponseWriter, r *http.Request, h *LocalDump) error {
	version := wholeFilesVersion
	if v, err := strconv.Atoi(r.Header.Get(versionHeader)); err == nil {
		version = max(version, min(v, Version))
	}
	m, err := h.manifest(r.Context(), version)
	if err != nil {
		return err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(b); err != nil {
		s.log.Debug("a manifest was not read to its end", "err", err)
	}
	return nil
}

// manifest returns the manifest if it is built soon.
func (h *LocalDump) manifest(ctx context.Context, version int) (*Manifest, error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	return h.Manifest(ctx, version)
}

// sendFile serves one file from an offset, as a whole or its data alone; links cannot lead out of its root.
func (s *Server) sendFile(w http.ResponseWriter, r *http.Request, h *LocalDump, root Root, path string, data bool) error {
	dir := h.Dirs[root]
	if dir == "" || !filepath.IsLocal(path) {
		return fault.New(fault.NotFound, "no file %q below %q", path, root)
	}
	at, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer at.Close()
	f, err := at.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fault.New(fault.NotFound, "%q is not a regular file", path)
	}
	content := io.ReadSeeker(f)
	if data { // as it was listed: what is a hole may change with the caches of the kernel
		m, err := h.manifest(r.Context(), Version)
		if err != nil {
			return err
		}
		listed := m.find(root, path)
		if listed == nil {
			return fault.New(fault.NotFound, "%q is not listed", path)
		}
		content = &packed{file: f, ranges: listed.Ranges, size: listed.DataBytes()}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", st.ModTime(), content)
	return nil
}
