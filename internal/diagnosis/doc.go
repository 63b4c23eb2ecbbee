// Package diagnosis serves what a developer asks a running daemon for: its log live and
// profiles of its process (DebugService). It checks no rights: the handlers in front of it do.
package diagnosis
