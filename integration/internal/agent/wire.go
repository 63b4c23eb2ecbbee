package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Op is the operation of a request.
type Op int

// The operations.
const (
	Ping   Op = iota + 1 // answer only
	Clock                // set the machine's clock to Time
	Exec                 // run Argv with streams attached; it is killed with the connection
	Start                // run Argv with output to Log; it outlives the connection; the answer has the process id
	Status               // status of the started process PID: Running, or its exit code
	Signal               // send Signal to the process group of the started process PID
	Put                  // write the input to Path with Mode, atomically
	Get                  // send the file Path
)

// Request opens a connection.
type Request struct {
	Op     Op        `json:"op"`
	Argv   []string  `json:"argv,omitempty"`
	Env    []string  `json:"env,omitempty"` // added to the agent's environment
	Dir    string    `json:"dir,omitempty"`
	Log    string    `json:"log,omitempty"`
	TTY    bool      `json:"tty,omitempty"` // Exec on a terminal of Rows by Cols, with stdout and stderr combined
	Rows   uint16    `json:"rows,omitempty"`
	Cols   uint16    `json:"cols,omitempty"`
	PID    int       `json:"pid,omitempty"`
	Signal int       `json:"signal,omitempty"`
	Path   string    `json:"path,omitempty"`
	Mode   uint32    `json:"mode,omitempty"`
	Time   time.Time `json:"time,omitzero"`
}

// End ends an answer. Error is empty unless the agent itself failed; a command's failure is its
// Code.
type End struct {
	Code    int    `json:"code"` // exit code; 128 + signal when killed
	PID     int    `json:"pid,omitempty"`
	Running bool   `json:"running,omitempty"`
	Error   string `json:"error,omitempty"`
}

type kind byte

const (
	kindRequest  kind = iota + 1 // client: JSON of Request
	kindInput                    // client: bytes for standard input or a file
	kindInputEnd                 // client: end of input
	kindResize                   // client: rows and columns, two big-endian uint16
	kindOutput                   // server: bytes of standard output or a file
	kindErrors                   // server: bytes of standard error
	kindEnd                      // server: JSON of End
)

// maxFrame limits a frame's payload.
const maxFrame = 1 << 20

const headerLen = 5

// frames writes frames to a connection. It is safe for concurrent use.
type frames struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frames) send(k kind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("agent: frame of %d bytes", len(payload))
	}
	b := make([]byte, headerLen, headerLen+len(payload))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(append(b, payload...))
	return err
}

func (f *frames) sendJSON(k kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.send(k, b)
}

// readFrame reads one frame. The caller owns the payload.
func readFrame(r io.Reader) (kind, []byte, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	k, n := kind(h[0]), binary.BigEndian.Uint32(h[1:])
	if k < kindRequest || k > kindEnd {
		return 0, nil, fmt.Errorf("agent: frame of unknown kind %d", k)
	}
	if n > maxFrame {
		return 0, nil, fmt.Errorf("agent: frame of %d bytes: at most %d are allowed", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return k, b, nil
}

// stream is a writer that sends its bytes as frames of one kind.
type stream struct {
	f *frames
	k kind
}

func (s stream) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n := min(len(b)-sent, maxFrame)
		if err := s.f.send(s.k, b[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}
