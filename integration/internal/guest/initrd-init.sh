#!/bin/sh
# /init of the initial RAM disk: loads the few modules that the kernel does not have built in, mounts the root disk,
# copies the bed's own files to it (they change more often than the disk), and hands over to the machine's init.
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
	echo "BED-FAIL cannot mount the root disk" >/dev/ttyS0
	sleep 3
	exit 1
fi
mkdir -p /root/bed
cp /bed/* /root/bed/
for d in proc sys dev; do mount --move /$d /root/$d; done
exec switch_root /root /bed/init.sh
