// Package agent is the control channel into a test machine: run a command, start a lasting process, copy files, set
// the clock. Server runs in the machine (integration/cmd/agent), Client on the host side.
//
// Each connection carries one request. Both sides send frames: a kind, a length, a payload. The first frame is the
// request; then come input frames from the client and output frames from the server, and one end frame last. A
// command dies when its connection breaks; a started process does not.
//
// There is no authentication: the network of a bed is private to it. On a host that serves as machine the socket
// lies in a folder for its owner only.
package agent
