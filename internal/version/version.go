// Package version holds the version of this Drover.
package version

// Version is set by the build (see the Makefile).
var Version = "unknown"
