#!/usr/bin/env bash
# Installs, upgrades, removes and purges the package in a Debian made for it, and
# lists what then differs from before. Root, mmdebstrap; no service runs in there.
#
#   dist/package-test.sh DEB        SUITE=trixie by default; ROOT=DIR takes a Debian that is there
set -euo pipefail
deb=$(realpath "${1:?usage: dist/package-test.sh DEB}")
work=$(mktemp -d)
trap 'umount -q "$work/root/var/lib/drover/node" || true; umount -q "$work/root/proc" || true; rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
want() { # WHAT GOT WANT
  [ "$2" = "$3" ] || fail "$1: $2, want $3"
  echo "ok: $1"
}

if [ -n "${ROOT:-}" ]; then
  cp -a "$ROOT" "$work/root"
else
  mmdebstrap --quiet --variant=apt --include=systemd,init-system-helpers,man-db,passwd,bash-completion "${SUITE:-trixie}" "$work/root"
fi
mount -t proc proc "$work/root/proc"
inside() { LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive chroot "$work/root" "$@" </dev/null; }
dpkg_() { inside dpkg "$@" >"$work/dpkg.log" 2>&1 || { cat "$work/dpkg.log" >&2; fail "dpkg $*"; }; }

# What is on the machine: every file with type, mode, owner and content. Logs, the
# package manager's own books and files that any installation rewrites are left out.
listing() {
  (cd "$work/root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./var/log -o -path ./var/cache -o -path ./var/lib/dpkg -o -path ./var/lib/apt \) -prune -o \
    -printf '%p %y %m %U:%G %l\n' -type f -exec sha256sum {} \; | LC_ALL=C sort)
}

listing >"$work/before"
cp "$deb" "$work/root/tmp/old.deb"

echo "== install"
dpkg_ -i /tmp/old.deb
version=$(inside dpkg-query -W -f '${Version}' drover)
inside drover version
want "the coordinator's user" "$(inside getent passwd drover | cut -d: -f1,7)" drover:/usr/sbin/nologin
want "state folder" "$(inside stat -c '%a %U' /var/lib/drover)" "711 root"
want "folder of keys" "$(inside stat -c '%a %U:%G' /etc/drover/tls)" "750 root:drover"
want "nothing is enabled" "$(inside sh -c 'find /etc/systemd -name "drover*" | wc -l')" 0
want "nothing is configured" "$(inside sh -c 'ls /etc/drover/*.hcl | xargs -n1 basename | xargs')" "coordinator.example.hcl node.example.hcl"
want "configuration files" "$(inside dpkg-query -W -f '${Conffiles}\n' drover | awk 'NF {print $1}' | xargs)" "/etc/drover/coordinator.example.hcl /etc/drover/node.example.hcl /etc/needrestart/conf.d/drover.conf"
want "files are as they were packed" "$(inside dpkg --verify drover)" ""
inside man drover-job-run >/dev/null || fail "man drover-job-run"
want "bash completes" "$(inside bash -c '. /usr/share/bash-completion/completions/drover; COMP_WORDS=(drover co) COMP_CWORD=1; _drover; echo ${COMPREPLY[@]}')" "coordinator config completion"
want "notices of others" "$(inside grep -c '^=====' /usr/share/doc/drover/copyright | sed 's/^[1-9][0-9]*$/some/')" some
inside drover config init coordinator >/dev/null
inside drover config validate coordinator
# Debian 12 has no growing pauses between restarts, and ignores them.
want "units" "$(inside systemd-analyze verify --man=no /usr/lib/systemd/system/drover-{coordinator,node,tasks}.service 2>&1 | grep -i drover | grep -vE "Unknown key '?(name ')?Restart(Steps|MaxDelaySec)'.*ignoring" || true)" ""

echo "== upgrade, interrupted once"
dpkg-deb -R "$deb" "$work/new"
sed -i "s/^Version: .*/Version: $version+1/" "$work/new/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -b "$work/new" "$work/root/tmp/new.deb" >/dev/null
echo "# mine" >>"$work/root/etc/drover/node.example.hcl"
mkdir -p "$work/root/var/lib/drover/node" && echo state >"$work/root/var/lib/drover/node/kept"
dpkg_ --unpack /tmp/new.deb
want "half way" "$(inside dpkg-query -W -f '${db:Status-Status}' drover)" unpacked
dpkg_ --configure -a
dpkg_ --configure -a
want "upgraded" "$(inside dpkg-query -W -f '${db:Status-Status} ${Version}' drover)" "installed $version+1"
want "configuration is kept" "$(tail -1 "$work/root/etc/drover/node.example.hcl")" "# mine"
inside test -e /etc/drover/coordinator.hcl || fail "the upgrade removed the configuration"
want "state is kept" "$(cat "$work/root/var/lib/drover/node/kept")" state

echo "== remove"
dpkg_ --remove drover
[ ! -e "$work/root/usr/bin/drover" ] || fail "the program is left"
inside test -e /etc/drover/coordinator.hcl || fail "removing took the configuration"
inside test -e /var/lib/drover/node/kept || fail "removing took the state"

echo "== install again, purge"
dpkg_ -i /tmp/new.deb
inside test -e /etc/drover/coordinator.hcl || fail "the configuration was not found again"
dpkg_ --purge drover
cat "$work/dpkg.log"
listing >"$work/after"
# The -man index and the -backup files of passwd change with any package that has a user.
if diff "$work/before" "$work/after" | grep '^[<>]' | grep -vE ' ?\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-($| )|\./etc/\.pwd\.lock' >"$work/diff"; then
  cat "$work/diff"
  fail "the purge left a difference"
fi
echo "ok: after the purge nothing differs but logs (and the backups of /etc/passwd, group, shadow, gshadow)"

echo "== purge with a file system mounted below the state folder"
dpkg_ -i /tmp/new.deb
mkdir -p "$work/root/var/lib/drover/node"
mount -t tmpfs tmpfs "$work/root/var/lib/drover/node"
mkdir -p "$work/root/var/lib/drover/node/attempts" "$work/root/var/lib/drover/node/lost+found" "$work/root/var/lib/drover/coordinator"
echo state | tee "$work/root/var/lib/drover/node/attempts/kept" "$work/root/var/lib/drover/coordinator/kept" >/dev/null
dpkg_ --purge drover
grep -q "is empty and stays: another file system is mounted" "$work/dpkg.log" || fail "the purge does not say what stays"
want "what stays" "$(cd "$work/root/var/lib/drover" && find . | LC_ALL=C sort | xargs)" ". ./node ./node/lost+found"
umount "$work/root/var/lib/drover/node"
