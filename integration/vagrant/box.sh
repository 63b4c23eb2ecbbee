#!/usr/bin/env bash
# Makes a Vagrant box of Debian for libvirt from the Debian archive, for machines that
# can download no box: box.sh DIR. DIR gets debian.box, vmlinuz and initrd; the
# Vagrantfile boots the kernel directly. Root, mmdebstrap, qemu-img, busybox.
# SUITE=trixie by default; BOX_PACKAGES, with commas, are added. About two minutes.
set -euo pipefail
dir=$(mkdir -p "${1:?usage: box.sh DIR}" && cd "$1" && pwd)
suite=${SUITE:-trixie}
here=$(cd "$(dirname "$0")" && pwd)
key=$(cat "$here/box.sh" <(echo "$suite ${BOX_PACKAGES:-}") | sha256sum | cut -d' ' -f1)
if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$key" ]; then exit 0; fi
rm -f "$dir/stamp"
work=$(mktemp -d "$dir/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The root file system. The kernel is unpacked, not installed: no boot loader. The
# archive is that of this host.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | awk '$2 !~ /security|updates|backports/ {print $1; exit}')
[ -n "$mirror" ] || { echo "box.sh: no Debian archive among this host's apt sources" >&2; exit 1; }
export work
mmdebstrap --quiet --mode=root --variant=minbase --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages none' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
  --include=systemd-sysv,systemd-resolved,systemd-timesyncd,dbus,udev,openssh-server,sudo,ca-certificates,iproute2,iputils-ping,kmod,procps,e2fsprogs,containerd,runc,criu,iptables,init-system-helpers,python3-minimal${BOX_PACKAGES:+,$BOX_PACKAGES} \
  --customize-hook='cd "$work" && export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG && apt-get -q download $(apt-cache depends linux-image-cloud-amd64 | awk "/Depends: linux-image-[0-9]/{print \$2}")' \
  "$suite" "$work/root" "$mirror"
root=$work/root
dpkg-deb -x "$work"/linux-image-*.deb "$work/k"
kv=$(ls "$work/k/boot" | sed -n 's/^vmlinuz-//p')
mv "$work/k/boot/vmlinuz-$kv" "$dir/vmlinuz"
mkdir -p "$root/usr/lib/modules"
mv "$work"/k/{usr/,}lib/modules/* "$root/usr/lib/modules/" 2>/dev/null || true
find "$root/usr/lib/modules" -name '*.ko.xz' -print0 | xargs -0 -r -n50 xz -d # unpacking is slow where it is emulated
depmod -b "$root/usr" "$kv" 2>/dev/null || depmod -b "$root" "$kv"

# An initrd that loads the disk's driver and goes on.
i=$work/initrd
mkdir -p "$i"/{bin,proc,sys,dev,new,mod}
cp "$(command -v busybox)" "$i/bin/busybox"
for a in sh mount insmod switch_root sleep; do ln -s busybox "$i/bin/$a"; done
n=10
for mod in virtio_pci virtio_blk virtio_net virtio_rng ext4; do # some are modules, some built in, by release
  modprobe -d "$root" -S "$kv" --show-depends $mod | awk '$1 == "insmod" {print $2}'
done | awk '!seen[$0]++' | while read -r f; do
  n=$((n + 1))
  cp "$f" "$i/mod/$n-$(basename "$f")"
done
cat >"$i/init" <<'END'
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in /mod/*; do insmod "$m"; done
n=0
until [ -e /dev/vda ] || [ $n -ge 600 ]; do sleep 0.1; n=$((n + 1)); done
mount -t ext4 /dev/vda /new || { echo "initrd: no root file system on /dev/vda"; exec sh; }
mount --move /dev /new/dev; mount --move /proc /new/proc; mount --move /sys /new/sys
exec switch_root /new /sbin/init
END
chmod 755 "$i/init"
(cd "$i" && find . | cpio -o -H newc --quiet) >"$dir/initrd"

# What Vagrant expects of a box: its user with its well-known key, and sudo.
chroot "$root" useradd -m -s /bin/bash vagrant
install -d -m 700 "$root/home/vagrant/.ssh"
ssh-keygen -q -t ed25519 -N '' -f "$work/key" -C drover-box
install -m 600 "$work/key" "$dir/box.key"
install -m 600 "$work/key.pub" "$root/home/vagrant/.ssh/authorized_keys"
chroot "$root" chown -R vagrant: /home/vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/vagrant"
chmod 440 "$root/etc/sudoers.d/vagrant"
printf 'UseDNS no\nGSSAPIAuthentication no\n' >"$root/etc/ssh/sshd_config.d/vagrant.conf"
echo debian >"$root/etc/hostname"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults,noatime 0 1' >"$root/etc/fstab"
# An empty machine-id is made anew; with ClientIdentifier=mac two machines get two addresses.
: >"$root/etc/machine-id"
cat >"$root/etc/systemd/network/10-eth0.network" <<'END'
[Match]
Name=eth0
[Network]
DHCP=ipv4
[DHCPv4]
ClientIdentifier=mac
END
for u in systemd-networkd ssh containerd; do chroot "$root" systemctl --quiet enable $u; done
for u in systemd-networkd-wait-online apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do chroot "$root" systemctl --quiet mask $u 2>/dev/null || true; done
mkdir -p "$root/etc/containerd"
cat >"$root/etc/containerd/config.toml" <<'END'
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
END
rm -rf "$root"/var/{cache,lib}/apt/*

mke2fs -q -F -t ext4 -O ^has_journal -m0 -d "$root" "$work/root.ext4" 4G # as root: owners are kept, and no loop device
qemu-img convert -O qcow2 "$work/root.ext4" "$work/box.img"
echo '{"provider": "libvirt", "format": "qcow2", "virtual_size": 4}' >"$work/metadata.json"
echo 'Vagrant.configure("2") { |config| }' >"$work/Vagrantfile"
tar -C "$work" -czf "$dir/debian.box" metadata.json Vagrantfile box.img
echo "$key" >"$dir/stamp"
ls -l "$dir"
