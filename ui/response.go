package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

// writeBody writes a response with an entity tag, compressed if the client can
// read that.
func writeBody(w http.ResponseWriter, r *http.Request, status int, kind string, body []byte) {
	writePacked(w, r, status, kind, &packed{text: body})
}

// writePacked writes a body as writeBody does. It is compressed if it is not yet.
func writePacked(w http.ResponseWriter, r *http.Request, status int, kind string, p *packed) {
	body := p.text
	h := w.Header()
	h.Set("Content-Type", kind)
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "private, no-cache")
	}
	h.Add("Vary", "Accept-Encoding")
	if status == http.StatusOK {
		tag := `W/"` + digest(body) + `"`
		h.Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if !acceptsGzip(r) || len(body) < 1024 {
		w.WriteHeader(status)
		_, _ = w.Write(body) // fails only if the reader is gone
		return
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	z := newPackedWriter(w)
	if p.blocks == nil {
		p = newPacked(body)
	}
	_ = z.write(p) // fails only if the reader is gone
	_ = z.close()  // as above
}

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// digest returns a short digest of b.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

//go:embed static
var staticFiles embed.FS

// asset is a file of the package.
type asset struct {
	kind    string
	body    []byte
	version string
}

// staticAssets returns the files by name; they are read at the first call.
var staticAssets = sync.OnceValue(readAssets)

// readAssets reads the embedded files. It fails only if the program was built
// wrong.
func readAssets() map[string]*asset {
	out := map[string]*asset{}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := staticFiles.ReadFile(name)
		kind := mime.TypeByExtension(path.Ext(name))
		switch path.Ext(name) { // the tables of the machine must not matter
		case ".js":
			kind = "text/javascript; charset=utf-8"
		case ".css":
			kind = "text/css; charset=utf-8"
		case ".svg":
			kind = "image/svg+xml"
		}
		out[path.Base(name)] = &asset{kind: kind, body: bytes.Clone(b), version: digest(b)[:10]}
		return err
	})
	if err != nil {
		panic(err)
	}
	return out
}

// staticURL returns the address of a file; it changes with the content.
func staticURL(name string) string { return "/static/" + name + "?v=" + staticAssets()[name].version }

func serveStatic(w http.ResponseWriter, r *http.Request) {
	a := staticAssets()[path.Base(r.URL.Path)]
	if a == nil {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("v") == a.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	writeBody(w, r, http.StatusOK, a.kind, a.body)
}
