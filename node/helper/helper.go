package helper

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/shuffle"
)

// Version of the protocol between daemon and helper. Both are of one program, but
// an upgrade may happen between them.
const Version = 2

// Request says what to do: exactly one of Fetch, Shuffle and Upload is set.
type Request struct {
	Version int         `json:"version"`
	Files   fsys.Config `json:"files"`
	User    string      `json:"user"` // HDFS user

	Fetch   *Fetch   `json:"fetch,omitempty"`
	Shuffle *Shuffle `json:"shuffle,omitempty"`
	Upload  *Upload  `json:"upload,omitempty"`
}

// Fetch fetches the split of a map task.
type Fetch struct {
	Pieces []mapreduce.Piece `json:"pieces"`
	File   string            `json:"file"` // the growing input
}

// Shuffle fetches the partitions of a reduce task.
type Shuffle struct {
	Job       uint64 `json:"job"`
	Partition int    `json:"partition"`
	Maps      int    `json:"maps"`    // total number of map outputs
	Dir       string `json:"dir"`     // folder for the partitions
	Journal   string `json:"journal"` // lists the partitions that are present
	Token     string `json:"token"`
	CA        string `json:"ca,omitempty"` // PEM; if not empty, the nodes use TLS
	Update
}

// Update is the current list of known map outputs.
type Update struct {
	Outputs outputList `json:"outputs"`
}

// MapOutput locates one map task's committed output.
type MapOutput struct {
	Stage   int32
	Task    int32
	Attempt int32
	Run     int32
	Address string
}

// Upload copies one file to a URI.
type Upload struct {
	Root        string `json:"root"` // folder that contains Name; links cannot lead out of it
	Name        string `json:"name"`
	URI         string `json:"uri"`
	Replication int    `json:"replication,omitempty"`
	Bytes       int64  `json:"bytes"` // expected
	CRC32C      uint32 `json:"crc32c"`
}

// Event is a report of a helper. Done or Error ends it.
type Event struct {
	Bytes   int64      `json:"bytes,omitempty"`   // moved so far
	Total   int64      `json:"total,omitempty"`   // if known
	Waiting string     `json:"waiting,omitempty"` // on the NameNode, and how much longer
	Warning string     `json:"warning,omitempty"` // for the daemon's log; such an event says nothing else
	Lost    outputList `json:"lost,omitempty"`    // that cannot be fetched, by task
	Done    bool       `json:"done,omitempty"`
	Error   string     `json:"error,omitempty"`
	Class   string     `json:"class,omitempty"` // of Error: a class of package fault, or ""
}

// FileSystems opens the file system of a URI on behalf of a user.
type FileSystems interface {
	Open(uri hdfs.URI, user string) (hdfs.FS, error)
}

// Tools are the resources of Run.
type Tools struct {
	Files   FileSystems
	HTTP    *http.Client  // for a shuffle
	Updates <-chan Update // for a shuffle; closed if no more follow
	pause   time.Duration // before the second try of a fetch; 0 = 500 ms
	Emit    func(Event)   // called from one goroutine at a time; not with Done or Error
}

// Run performs the request. Its error has a class of package fault. Invalid and NotFound: the job's
// input or output is at fault. Conflict: the input changed. Exhausted: this node cannot reach the
// nodes with the map outputs. Other errors may be transient.
func Run(ctx context.Context, r *Request, t Tools) error {
	if r.Version != Version {
		return fault.New(fault.Unsupported, "request of version %d: this helper supports %d", r.Version, Version)
	}
	switch {
	case r.Fetch != nil:
		return runFetch(ctx, r, t)
	case r.Shuffle != nil:
		return runShuffle(ctx, r, t)
	case r.Upload != nil:
		return runUpload(ctx, r, t)
	default:
		return fault.New(fault.Invalid, "the request asks for nothing")
	}
}

// IsRetryable reports whether another helper may succeed after one ended with err. The daemon then
// starts one, and the harness must not be told that its input will not come.
func IsRetryable(err error) bool {
	return fault.Class(err) == nil || errors.Is(err, fault.Unavailable)
}

// openFS parses a URI and opens its file system.
func openFS(files FileSystems, raw, user string) (hdfs.FS, hdfs.URI, error) {
	uri, err := hdfs.ParseURI(raw)
	if err != nil {
		return nil, uri, fsys.Classed(err)
	}
	fs, err := files.Open(uri, user)
	return fs, uri, err
}

// key returns the key of the map output of a job.
func (o MapOutput) key(s *Shuffle) shuffle.OutputKey {
	return shuffle.OutputKey{Job: s.Job, Stage: o.Stage, Task: o.Task, Attempt: o.Attempt, Run: o.Run}
}
