package taskinit

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"

	"github.com/drover-run/drover/internal/fault"
)

// Verb is the first argument of the executable that selects this program.
const Verb = "task-init"

// SocketName is the name of the node's socket in the folder that is the argument after
// Verb.
const SocketName = "socket"

// maxMessage bounds a message: the kernel takes 2 MiB of arguments and environment.
const maxMessage = 8 << 20

// Request is a message of the node. Three files come with it: standard input, output
// and error of the new process.
type Request struct {
	Args []string `json:"args,omitempty"`
	Env  []string `json:"env,omitempty"` // "K=V", in addition to the container's
	Dir  string   `json:"dir,omitempty"` // "": the container's
	// Extra is set for a process beside the task's command.
	Extra bool `json:"extra,omitempty"`
	// Kill, if set, is the process to kill; there is nothing else then, and no files.
	Kill int `json:"kill,omitempty"`
}

// Event is the closed set of what a Reply says.
type Event int

// The events.
const (
	Started Event = iota + 1
	Refused       // the process could not be started, for the reason in Error
	Exited        // a started process has ended
)

// Reply is a message of process 1.
type Reply struct {
	Event Event  `json:"event"`
	PID   int    `json:"pid,omitempty"`  // in the container
	Code  int    `json:"code,omitempty"` // as wait(2) reports it, 128+signal for a killed one
	Error string `json:"error,omitempty"`
	// Permanent is set for a refusal that the next try would meet too. Without it the try is
	// repeated, also where a process 1 of an earlier version does not know of it.
	Permanent bool `json:"permanent,omitempty"`
}

// Encode returns a message with its length before it.
func Encode(m any) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > maxMessage {
		return nil, fault.New(fault.Invalid, "command and environment have %d bytes together, more than %d", len(b), maxMessage)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// Decode reads a message of which the length has been read.
func Decode(r io.Reader, length []byte, m any) error {
	n := binary.LittleEndian.Uint32(length)
	if n > maxMessage {
		return fault.New(fault.Corrupt, "a message of %d bytes", n)
	}
	var b bytes.Buffer // grows by what arrives, not by what was said
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return err
	}
	return json.Unmarshal(b.Bytes(), m)
}
