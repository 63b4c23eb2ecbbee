#!/bin/sh
# /init of the initial RAM disk. It loads the modules that are not built into the kernel, mounts the root disk, copies
# the test bed's own files to it (they change more often than the disk), and starts the machine's init.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /modules/*.ko; do insmod "$m"; done
n=0
until [ -b /dev/vda ] || [ $n -ge 200 ]; do
	sleep 0.05
	n=$((n + 1))
done
if ! mount -t ext4 -o rw,noatime /dev/vda /root; then
	echo "TESTBED-FAIL cannot mount the root disk" >/dev/ttyS0
	sleep 3
	exit 1
fi
mkdir -p /root/testbed
cp /testbed/* /root/testbed/
for d in proc sys dev; do mount --move /$d /root/$d; done
exec switch_root /root /testbed/init.sh
