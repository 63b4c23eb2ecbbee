#!/usr/bin/env bash
# Runs a command beside a libvirtd of its own, in private network, mount and process
# namespaces: libvirt.sh DIR COMMAND [ARG ...]. When it ends, nothing is left: no
# machine, network or daemon. Root.
set -euo pipefail
dir=$(mkdir -p "${1:?usage: libvirt.sh DIR COMMAND ...}" && cd "$1" && pwd)
shift
if [ -z "${DROVER_LIBVIRT_INSIDE:-}" ]; then
  DROVER_LIBVIRT_INSIDE=1 exec unshare --net --mount --pid --fork --mount-proc --kill-child=KILL "$0" "$dir" "$@"
fi
ip link set lo up
mount -t tmpfs tmpfs /run
mkdir -p /run/libvirt /run/dbus /run/lock "$dir"/{etc,lib,images,home}
# libvirt's own folders, for as long as this runs.
mount --bind "$dir/lib" /var/lib/libvirt
mkdir -p /var/lib/libvirt/{images,qemu,dnsmasq,boot,network,sanlock,swtpm}
# Disks of a run that was killed: with them no machine of that name can be made. Boxes stay.
find /var/lib/libvirt/images -type f ! -name '*_box*.img' -delete
cp -a /etc/libvirt/. "$dir/etc/"
mount --bind "$dir/etc" /etc/libvirt
rm -f /etc/libvirt/qemu/*.xml /etc/libvirt/qemu/networks/*.xml /etc/libvirt/qemu/networks/autostart/* 2>/dev/null || true
printf 'user = "root"\ngroup = "root"\ncgroup_controllers = [ ]\nsecurity_driver = "none"\nnamespaces = [ ]\n' >/etc/libvirt/qemu.conf
printf 'auth_unix_rw = "none"\nauth_unix_ro = "none"\nlog_level = 3\nlog_outputs = "3:file:%s/libvirtd.log"\n' "$dir" >"$dir/libvirtd.conf"
/usr/sbin/virtlogd </dev/null >"$dir/virtlogd.out" 2>&1 & # the command's own input and output are not for daemons
/usr/sbin/libvirtd -f "$dir/libvirtd.conf" </dev/null >"$dir/libvirtd.out" 2>&1 &
for _ in $(seq 300); do
  virsh -c qemu:///system version >/dev/null 2>&1 && break
  sleep 0.2
done
virsh -c qemu:///system version >/dev/null || { echo "libvirt.sh: libvirtd does not start: $dir/libvirtd.log" >&2; exit 1; }
export VAGRANT_HOME=$dir/home VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_DEFAULT_PROVIDER=libvirt LIBVIRT_DEFAULT_URI=qemu:///system
"$@"
