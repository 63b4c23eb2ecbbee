// Package diagnosis serves a running daemon's live log and profiles of its process to developers
// (DebugService). It does not check permissions: the handlers in front of it do.
package diagnosis
