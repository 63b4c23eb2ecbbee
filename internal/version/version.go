// Package version says which Drover this is.
package version

// Version is set by the build (see the Makefile).
var Version = "unknown"
