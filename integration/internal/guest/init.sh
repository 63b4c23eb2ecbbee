#!/bin/bash
# Process 1 of a test machine. It sets up mounts, unified cgroup v2, disks (vdb is /data with project quotas, vdc is
# swap) and containerd, then starts the agent, which waits on ttyS1 for the machine's identity. The saved RAM is that of
# a machine in this state. Lines TESTBED-* on ttyS0 are for the host side.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
exec </dev/null >/dev/ttyS0 2>&1

fail() {
	echo "TESTBED-FAIL $*"
	sleep 5 # until the host side has read it
	poweroff -f
}

option() { # option NAME prints its value on the kernel's command line
	local word
	for word in $(</proc/cmdline); do
		[ "${word%%=*}" = "$1" ] && echo "${word#*=}"
	done
}

mounts() {
	mount -t tmpfs -o mode=755 tmpfs /run
	mount -t tmpfs tmpfs /tmp
	mkdir -p /dev/pts /dev/shm /dev/mqueue /data
	mount -t devpts -o ptmxmode=666 devpts /dev/pts
	mount -t tmpfs tmpfs /dev/shm
	mount -t mqueue mqueue /dev/mqueue
	mount --make-rshared /
}

cgroups() {
	local c
	mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup || fail "cgroup v2"
	mkdir /sys/fs/cgroup/init
	echo $$ >/sys/fs/cgroup/init/cgroup.procs
	for c in cpu cpuset memory io pids; do
		echo +$c >/sys/fs/cgroup/cgroup.subtree_control || fail "cgroup controller $c"
	done
}

# An emulated processor takes 10 ms for what a real one does in less than one, and forgets its address tables whenever
# it changes to another process. So a slice is longer by that factor, and whoever wakes waits for the end of the slice:
# the life of a container then costs less than half of the switches, and an eighth less processor time.
slices() {
	local d=/sys/kernel/debug
	mount -t debugfs none $d || fail "debugfs"
	echo NO_WAKEUP_PREEMPTION >$d/sched/features || fail "scheduler feature"
	echo none >$d/sched/preempt || fail "preemption model"
	echo 10000000 >$d/sched/base_slice_ns || fail "scheduler slice"
	umount $d
}

disks() {
	modprobe quota_v2 # ext4 loads it only once /data is in use
	mount -o noatime,prjquota /dev/vdb /data || fail "data disk"
	swapon /dev/vdc || fail "swap disk"
	mkdir -p /data/containerd /var/lib/containerd
	mount --bind /data/containerd /var/lib/containerd
}

engine() {
	local n
	modprobe -a veth inet_diag tcp_diag udp_diag unix_diag netlink_diag af_packet_diag tun # CRIU needs the *_diag modules
	mkdir -p /etc/containerd
	cp /testbed/containerd.toml /etc/containerd/config.toml
	containerd >/run/containerd.log 2>&1 &
	for ((n = 0; n < 1200; n++)); do
		ctr version >/dev/null 2>&1 && return
		sleep 0.1
	done
	tail -5 /run/containerd.log
	fail "containerd does not answer"
}

# Before its RAM is saved a machine does each slow operation once: unpack an image, start containers, let CRIU probe the
# kernel. Their traces in memory remain, the image does not.
warm() {
	local image=localhost/busybox:latest n
	ctr image import /testbed/warm.tar >/dev/null || fail "importing an image"
	for n in 1 2; do ctr run --rm $image warm$n /bin/true || fail "running a container"; done
	ctr image rm --sync $image >/dev/null
	criu check >/dev/null 2>&1
	sync
	echo 3 >/proc/sys/vm/drop_caches
}

mounts
ip link set lo up
cgroups
slices
disks
engine
# A machine whose power was cut after it was warmed has no need of it again.
[ "$(option testbed.warm)" = 1 ] && [ ! -e /testbed/warmed ] && warm && touch /testbed/warmed
stty -F /dev/ttyS1 raw -echo
setsid /testbed/agent /dev/ttyS1 /dev/ttyS0 &
while :; do # reaps orphans
	wait
	sleep 1
done
