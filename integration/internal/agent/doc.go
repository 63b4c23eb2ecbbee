// Package agent is the control channel to a test machine: it runs commands, starts background
// processes, copies files and sets the clock. Server runs in the machine (integration/cmd/agent),
// Client on the host side.
//
// Each connection carries one request. Both sides send frames of kind, length and payload. The
// first frame is the request; then follow input frames from the client and output frames from the
// server, and finally one end frame. A command is killed when its connection breaks; a started
// process is not.
//
// There is no authentication: the network of a test bed is private. On a host that serves as
// machine the socket is in a folder that only its owner can access.
package agent
