package systemd

import (
	"fmt"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Ready tells systemd that the service is up; status becomes the "Status" line of systemctl status.
func Ready(status string) error {
	return notify(daemon.SdNotifyReady, statusLine(status))
}

// Reloading tells systemd that the configuration is being read again; the next Ready ends the
// reload.
func Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	return notify(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping tells systemd that the service is about to end.
func Stopping(status string) error {
	return notify(daemon.SdNotifyStopping, statusLine(status))
}

// statusLine keeps a status on one line: a newline would begin another field.
func statusLine(text string) string {
	return "STATUS=" + strings.ReplaceAll(text, "\n", " ")
}

// notify sends the fields to $NOTIFY_SOCKET. Without one it does nothing.
func notify(fields ...string) error {
	_, err := daemon.SdNotify(false, strings.Join(fields, "\n"))
	return err
}
