#!/bin/sh
# Lists what is on a machine, for comparing it before an installation and after a
# purge: listing.sh [FILE]. Logs, caches, the package manager's own books, what any
# service of systemd rewrites, and the units of a disk that is mounted on /var/lib/drover,
# which is the machine's and not the package's, are left out.
set -eu
{
  find / /var/lib/drover -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /root -o -path '/var/log' -o -path /var/tmp \
    -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/lib/containerd -o -path /etc \
    -o -path /swapfile -o -path /var/lib/drover.img \) -prune -o -type f -printf 'file %p %m %u:%g %s %T@\n' -o ! -type d -printf 'file %p %y %l\n' -o -printf 'folder %p %m %u:%g\n' 2>/dev/null
  find /etc -xdev \( -name 'passwd-' -o -name 'group-' -o -name 'shadow-' -o -name 'gshadow-' -o -name 'subuid-' -o -name 'subgid-' -o -name .pwd.lock -o -name ld.so.cache \) -prune \
    -o -type f -printf 'file %p %m %u:%g\n' -exec sha256sum {} + -o ! -type d -printf 'file %p %y %l\n' -o -printf 'folder %p %m %u:%g\n'
  find /run -xdev -name '*drover*' -printf 'run %p\n'
  find /sys/fs/cgroup -name '*drover*' -printf 'cgroup %p\n' 2>/dev/null
  awk '{print "mount", $5}' /proc/self/mountinfo | grep -v ' /run/user' 
  for p in /proc/[0-9]*; do
    case $(cat "$p/comm" 2>/dev/null) in drover | containerd-shim*) echo "process $(tr '\0' ' ' <"$p/cmdline")" ;; esac
  done
  for n in $(ctr namespaces ls -q 2>/dev/null); do
    for what in containers images snapshots content leases; do ctr -n "$n" $what ls 2>/dev/null | sed "1d; s/^/containerd $n $what /"; done
  done
  systemctl list-unit-files --no-legend --no-pager 2>/dev/null | grep -i drover | sed 's/^/unit /' || true
} | grep -v 'var-lib-drover\.mount\|@var-lib-drover\.service' | LC_ALL=C sort -u >"${1:-/var/tmp/listing.before}"
