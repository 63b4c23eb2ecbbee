// Package systemd lets a daemon speak to systemd where systemd started it:
// readiness, reloads and the end (sd_notify), and log records with fields in the
// journal. Elsewhere everything here does nothing.
package systemd
