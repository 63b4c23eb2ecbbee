#!/usr/bin/env bash
# The package on machines with systemd, as an operator has it: test.sh DIST. Makes the
# box, a libvirtd of its own and the machines, and ends with none of them. Root.
# DROVER_NODES=2, WORK=.cache/vagrant by default. Emulated it takes 10 to 20 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dist=$(cd "${1:?usage: test.sh DIST}" && pwd)
work=$(mkdir -p "${WORK:-$root/.cache/vagrant}" && cd "${WORK:-$root/.cache/vagrant}" && pwd)
export DROVER_DIST=$dist DROVER_BOX_DIR=$work/box DROVER_NODES=${DROVER_NODES:-2} DROVER_MEMORY=${DROVER_MEMORY:-768} DROVER_CPUS=${DROVER_CPUS:-1}
if [ -z "${DROVER_VAGRANT_INSIDE:-}" ]; then
  for p in vagrant virsh /usr/sbin/libvirtd dnsmasq qemu-img mmdebstrap busybox; do
    command -v $p >/dev/null || { echo "test.sh: $p is missing: apt-get install --no-install-recommends vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients dnsmasq-base qemu-utils qemu-system-x86 mmdebstrap busybox-static" >&2; exit 1; }
  done
  "$here/box.sh" "$DROVER_BOX_DIR"
  DROVER_VAGRANT_INSIDE=1 exec "$here/libvirt.sh" "$work/libvirt" "$0" "$dist"
fi

begun=$SECONDS
say() { printf '[%4ds] %s\n' $((SECONDS - begun)) "$*"; }
fail() { say "FAILED: $*"; exit 1; }
want() { # WHAT GOT WANT
  [ "$2" = "$3" ] || fail "$1: '$2', want '$3'"
  say "ok: $1"
}
on() { # MACHINE COMMAND
  local ip=192.168.77.10
  [ "$1" = c1 ] || ip=192.168.77.1${1#n}
  ssh -q -i "$DROVER_BOX_DIR/box.key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 "vagrant@$ip" "sudo sh -c $(printf %q "$2")"
}
await() { # SECONDS WHAT MACHINE COMMAND
  local end=$((SECONDS + $1))
  until on "$3" "$4" >"$work/last" 2>&1; do
    [ $SECONDS -lt $end ] || { cat "$work/last"; fail "$2: not within $1 s"; }
    sleep 1
  done
  say "ok: $2"
}
machines=(c1)
nodes=()
for k in $(seq "$DROVER_NODES"); do machines+=("n$k") nodes+=("n$k"); done

cd "$root"
vagrant destroy -f >/dev/null 2>&1 || true
rm -rf .vagrant/machines
vagrant box add --force --name drover/debian "$DROVER_BOX_DIR/debian.box" >/dev/null
say "vagrant up"
vagrant up --no-parallel --no-color 2>&1 | tr '\r' '\n' | grep --line-buffered -v 'Progress: ' | sed -u 's/^/    /' || fail "vagrant up"
say "up"

base=/sys/fs/cgroup/system.slice/drover-tasks.service
tasks_of='for p in $(cat /sys/fs/cgroup/system.slice/drover-tasks.service/tasks/*/container/cgroup.procs 2>/dev/null); do [ "$(cat /proc/$p/comm)" = sh ] && echo $p; done | sort | xargs'
limits_of='cd /sys/fs/cgroup/system.slice/drover-tasks.service/tasks && for g in [0-9]*; do echo $g $(cat $g/cpu.max $g/memory.max $g/io.max $g/pids.max); done'
await 240 "nodes are up" c1 "[ \$(drover node list | grep -c ' up ') -eq $DROVER_NODES ] || { drover node list; false; }"

say "== a first job"
on c1 'cat >/root/first.hcl' <<'END'
job "first" {
  image = "rootfs:/srv/images/busybox"
  stage "run" {
    command = ["sh", "-c", "echo first"]
    tasks   = 2
    resources { cpu = "100m"  memory = "32MiB"  io = "1MiB/s" }
  }
}
END
on c1 'drover job run /root/first.hcl' || fail "the first job"

say "== a job that runs on"
on c1 'cat >/root/pulse.hcl' <<END
job "pulse" {
  image = "rootfs:/srv/images/busybox"
  stage "run" {
    command = ["sh", "-c", "until [ -e /task/never ] || [ \$i = 240 ]; do i=\$((i + 1)); echo \$i; sleep 1; done"]
    tasks   = $((2 * DROVER_NODES))
    resources { cpu = "100m"  memory = "32MiB"  io = "1MiB/s" }
  }
}
END
on c1 'drover job run -detach /root/pulse.hcl'
declare -A pids limits holder
for m in "${nodes[@]}"; do
  await 60 "$m runs tasks" "$m" "[ -n \"\$($tasks_of)\" ]"
  pids[$m]=$(on "$m" "$tasks_of") limits[$m]=$(on "$m" "$limits_of") holder[$m]=$(on "$m" 'systemctl show -P MainPID drover-tasks')
  want "$m: the holder is in its leaf" "$(on "$m" "cat $base/holder/cgroup.procs")" "${holder[$m]}"
  want "$m: drover-node.service holds no process" "$(on "$m" 'cat /sys/fs/cgroup/system.slice/drover-node.service/cgroup.procs | wc -l')" 0
  say "$m: $(tr '\n' ';' <<<"${limits[$m]}")"
done
same() { # WHAT
  for m in "${nodes[@]}"; do
    want "$m: $1: the same processes" "$(on "$m" "$tasks_of")" "${pids[$m]}"
    want "$m: $1: the same limits" "$(on "$m" "$limits_of")" "${limits[$m]}"
    want "$m: $1: the same holder" "$(on "$m" 'systemctl show -P MainPID drover-tasks')" "${holder[$m]}"
  done
}

say "== daemon-reload, restart, reload under load"
for m in "${nodes[@]}"; do on "$m" 'systemctl daemon-reload && systemctl restart drover-node && systemctl is-active -q drover-node && systemctl reload drover-node'; done
same "restart"

say "== upgrade under load"
rm -rf "$work/deb"
dpkg-deb -R "$(ls -t "$dist"/drover_*_amd64.deb | head -1)" "$work/deb"
sed -i 's/^Version: .*/&+upgraded/' "$work/deb/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -b "$work/deb" "$work/new.deb" >/dev/null
for m in "${machines[@]}"; do
  on "$m" 'cat >/tmp/new.deb' <"$work/new.deb"
  on "$m" 'date +%s.%N >/tmp/begun; dpkg -i /tmp/new.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; false; }' || fail "$m: the upgrade"
  [ "$m" != c1 ] || await 60 "the API answers again" c1 'drover status && awk -v a=$(cat /tmp/begun) -v b=$(date +%s.%N) "BEGIN { print b - a, \"seconds since dpkg began\" }"'
  want "$m: upgraded" "$(on "$m" "dpkg-query -W -f '\${db:Status-Status}' drover")" installed
done
cat "$work/last" || true
same "upgrade"
await 120 "nodes are up again" c1 "[ \$(drover node list | grep -c ' up ') -eq $DROVER_NODES ]"

say "== the journal"
for m in "${nodes[@]}"; do on "$m" 'systemctl --no-pager status drover-node drover-tasks | head -30; journalctl -o cat -n 5 -u drover-node' | sed "s/^/    $m: /"; done
on c1 'systemd-analyze security --no-pager drover-coordinator | tail -1'
on n1 'systemd-analyze security --no-pager drover-node | tail -1; systemd-analyze security --no-pager drover-tasks | tail -1'

await 400 "the job ends right" c1 'drover job wait pulse'
want "no task was tried twice" "$(on c1 "drover task status -json pulse | python3 -c 'import json,sys; print(max(len(t.get(\"attempts\", [])) for t in json.load(sys.stdin)[\"tasks\"]))' 2>/dev/null || echo 1")" 1

say "== drain and reboot under load"
on c1 'drover job run -detach -name again /root/pulse.hcl'
await 60 "n1 runs tasks" n1 "[ -n \"\$($tasks_of)\" ]"
on c1 'drover node drain n1'
on n1 'systemctl reboot' || true
await 300 "n1 is back" c1 'drover node list | grep "^n1 " | grep -q " up " && [ "$(drover node list | grep -c " up ")" -gt 0 ]'
await 120 "its services run" n1 'systemctl is-active -q drover-node drover-tasks'
on c1 'drover node drain -off n1; drover job stop again'

say "== purge"
on n1 'dpkg --purge drover && ls -d /etc/drover /var/lib/drover /run/drover* /sys/fs/cgroup/system.slice/drover* 2>/dev/null; getent passwd drover; ctr -n drover containers ls -q | head -3; true' | sed 's/^/    left: /'
say "done"
vagrant destroy -f >/dev/null 2>&1 || true
