// Package systemd lets a daemon that systemd started speak to systemd: readiness, reloads and the
// end (sd_notify), and log records with fields in the journal. Without systemd its functions do
// nothing.
package systemd
