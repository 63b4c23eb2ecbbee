package shuffle

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
)

// Output is one committed map output: its index and its open data file.
type Output struct {
	Index *mapreduce.Index
	Data  io.ReadSeekCloser
}

// Outputs finds committed map outputs. NotFound: there is none. Unavailable: that is not known yet.
// Corrupt or Invalid: the output is damaged.
type Outputs interface {
	// Token returns the token of the job without opening the output.
	Token(k OutputKey) (string, error)
	// Open opens the output; the caller closes Data.
	Open(k OutputKey) (*Output, error)
}

// Counter counts what a Server does.
type Counter interface {
	CountRequest(status int) // of HTTP
	CountBytes(n int64)      // of map outputs, also those handed over by descriptor
}

// Server serves map outputs. It is an http.Handler for Prefix.
type Server struct {
	outputs Outputs
	slots   chan struct{}
	log     *slog.Logger
	count   Counter
}

// NewServer makes a server that serves at most most requests at once, and refuses more.
func NewServer(outputs Outputs, most int, log *slog.Logger, count Counter) *Server {
	return &Server{outputs: outputs, slots: make(chan struct{}, most), log: log, count: count}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.count.CountRequest(s.serve(w, r))
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) int {
	refuse := func(status int, text string) int {
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1") // it may have the output: ask again
		}
		http.Error(w, text, status)
		return status
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return refuse(http.StatusMethodNotAllowed, "want GET")
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return refuse(http.StatusServiceUnavailable, "too many requests at once")
	}
	k, partition, ok := parsePath(r.URL.Path)
	if !ok {
		return refuse(http.StatusNotFound, "no such path")
	}
	token, err := s.outputs.Token(k)
	if err == nil && !verifyProof(r.Header.Get("Authorization"), token, r.URL.Path) {
		return refuse(http.StatusUnauthorized, "this is not the job's token")
	}
	var out *Output
	if err == nil {
		out, err = s.outputs.Open(k)
	}
	if err != nil {
		return refuse(s.statusOf(r, err), err.Error())
	}
	defer out.Data.Close()
	if partition >= len(out.Index.Parts) {
		return refuse(http.StatusNotFound, "no such partition")
	}
	return s.send(w, r, out, partition)
}

// statusOf returns the status for an output that cannot be opened. Only errors of its files count
// as damage, for which the map runs again. Errors of this machine, such as too few descriptors, may
// be transient.
func (s *Server) statusOf(r *http.Request, err error) int {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, fault.NotFound), errors.Is(err, os.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fault.Unavailable):
		return status
	case errors.Is(err, fault.Corrupt), errors.Is(err, fault.Invalid), errors.Is(err, syscall.EIO):
		status = http.StatusInternalServerError
	}
	s.log.Warn("cannot serve a map output", "path", r.URL.Path, "err", err)
	return status
}

// send writes the partition from the start of the range to its end. Clients send
// only open-ended ranges, so only those are supported.
func (s *Server) send(w http.ResponseWriter, r *http.Request, out *Output, partition int) int {
	part := out.Index.Parts[partition]
	from, ok := rangeStart(r.Header.Get("Range"))
	if !ok || from > part.Length {
		http.Error(w, "range outside the partition", http.StatusRequestedRangeNotSatisfiable)
		return http.StatusRequestedRangeNotSatisfiable
	}
	if _, err := out.Data.Seek(part.Offset+from, io.SeekStart); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	described, err := json.Marshal(part)
	if err != nil {
		panic("shuffle: a range that JSON cannot hold: " + err.Error())
	}
	h := w.Header()
	h.Set(headerPartition, string(described))
	h.Set(headerCodec, out.Index.Codec.String())
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(part.Length-from, 10))
	status := http.StatusOK
	if from > 0 {
		status = http.StatusPartialContent
	}
	if handOver(w, r, status, out.Data, part.Offset+from) {
		s.count.CountBytes(part.Length - from)
		return status
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return status
	}
	// If fewer bytes are sent, the connection is closed: the reader notices and resumes.
	n, err := io.CopyN(w, out.Data, part.Length-from)
	s.count.CountBytes(n)
	if err != nil {
		s.log.Debug("a map output was not read to its end", "path", r.URL.Path, "err", err)
	}
	return status
}

// rangeStart parses "" as 0 and "bytes=N-" as N.
func rangeStart(h string) (int64, bool) {
	if h == "" {
		return 0, true
	}
	v, ok := strings.CutPrefix(h, "bytes=")
	v, open := strings.CutSuffix(v, "-")
	n, err := strconv.ParseInt(v, 10, 64)
	return n, ok && open && err == nil && n >= 0
}
