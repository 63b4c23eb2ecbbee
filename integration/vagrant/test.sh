#!/usr/bin/env bash
# The package on machines with systemd, as an operator has it: test.sh DIST. Makes the
# box, a libvirtd and an HDFS of its own and the machines, and ends with none of them.
# Root. DROVER_NODES=2 (at least), WORK=.cache/vagrant by default. Emulated it takes 10
# to 20 minutes on an idle host, much longer on a busy one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dist=$(cd "${1:?usage: test.sh DIST}" && pwd)
work=$(mkdir -p "${WORK:-$root/.cache/vagrant}" && cd "${WORK:-$root/.cache/vagrant}" && pwd)
export DROVER_DIST=$dist DROVER_BOX_DIR=$work/box DROVER_NODES=${DROVER_NODES:-2} DROVER_MEMORY=${DROVER_MEMORY:-768} DROVER_CPUS=${DROVER_CPUS:-1}
# A busy host stops an emulated machine for longer than the lease that metal has.
export DROVER_LEASE=${DROVER_LEASE:-3m} DROVER_NAMENODE=10.88.0.10:8020 DROVER_DATANODE=10.88.0.21
export VAGRANT_DOTFILE_PATH=$work/dot DROVER_BEFORE=$here/listing.sh # not the state of a user's own machines
[ "$DROVER_NODES" -ge 2 ] || { echo "test.sh: DROVER_NODES=$DROVER_NODES: a drain needs 2" >&2; exit 2; }
if [ -z "${DROVER_VAGRANT_INSIDE:-}" ]; then
  for p in vagrant virsh /usr/sbin/libvirtd dnsmasq qemu-img mmdebstrap busybox java curl python3; do
    command -v $p >/dev/null || { echo "test.sh: $p is missing: apt-get install --no-install-recommends vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients dnsmasq-base qemu-utils qemu-system-x86 mmdebstrap busybox-static default-jre-headless curl python3" >&2; exit 1; }
  done
  "$here/box.sh" "$DROVER_BOX_DIR"
  (cd "$root" && go run ./integration/cmd/testbed hdfs -- true) # its jars, into the cache
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
rm -rf "$work/dot"
mkfifo "$work/hdfs.in.$$"
mapfile -t datanodes < <(seq -f '10.88.0.%.0f' 21 $((20 + DROVER_NODES)))
"$here/hdfs.sh" "$work/hdfs" 10.88.0.10 "${datanodes[@]}" <"$work/hdfs.in.$$" >"$work/hdfs.out" 2>&1 &
exec 9>"$work/hdfs.in.$$"
rm "$work/hdfs.in.$$"
hdfs() { # COMMAND ARG ...: of HdfsHost, on its standard input; waits for the answer
  local before
  before=$(wc -l <"$work/hdfs.out")
  (IFS=$'\t'; echo "$*" >&9)
  for _ in $(seq 600); do
    [ "$(wc -l <"$work/hdfs.out")" -gt "$before" ] && break
    sleep 0.2
  done
  tail -1 "$work/hdfs.out" | grep -q '^ok' || fail "HDFS: $*: $(tail -1 "$work/hdfs.out")"
}
for _ in $(seq 600); do
  grep -q '^ok ready' "$work/hdfs.out" && break
  sleep 0.2
done
grep -q '^ok ready' "$work/hdfs.out" || fail "HDFS: $(cat "$work/hdfs.out" "$work/hdfs/hdfs.log" | tail -5)"
web=http://10.88.0.10:9870/webhdfs/v1
head -c 3000000 <(cat "$root"/docs/*/*.md "$root"/scheduler/*/*.go "$root"/coordinator/*/*.go | LC_ALL=C tr -cs '[:alnum:]\n' ' ') >"$work/text"
curl -fsS -o "$work/last" -X PUT "$web/out?op=MKDIRS&permission=777&user.name=root"
curl -fsS -o "$work/last" -L -X PUT -T "$work/text" "$web/books/a.txt?op=CREATE&user.name=root&blocksize=1048576"
say "HDFS is up, with $(wc -c <"$work/text") bytes of text"

vagrant box add --force --name drover/debian "$DROVER_BOX_DIR/debian.box" >/dev/null
say "vagrant up"
fresh=$SECONDS
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
say "from no machine to the end of the first job: 1 command (vagrant up), $((SECONDS - fresh)) s"

say "== MapReduce over HDFS"
on c1 'cat >/root/wordcount.hcl' <<'END'
job "wordcount" {
  input  { path = "hdfs:///books/*" }
  output { path = "hdfs:///out/wordcount" }
  stage "map" {
    kind    = "map"
    disk    = "128MiB"
    builtin = ["wordcount"]
    resources { cpu = "200m"  memory = "64MiB"  io = "2MiB/s" }
  }
  stage "reduce" {
    kind     = "reduce"
    tasks    = 2
    disk     = "128MiB"
    builtin  = ["sum"]
    combiner = true
    resources { cpu = "200m"  memory = "64MiB"  io = "2MiB/s" }
  }
}
END
on c1 'drover job run /root/wordcount.hcl' | sed 's/^/    /' || fail "wordcount"
curl -fsS "$web/out/wordcount?op=LISTSTATUS" | python3 -c 'import json, sys; print("\n".join(f["pathSuffix"] for f in json.load(sys.stdin)["FileStatuses"]["FileStatus"] if f["length"]))' >"$work/parts"
while read -r part; do curl -fsSL "$web/out/wordcount/$part?op=OPEN&user.name=root"; done <"$work/parts" | LC_ALL=C sort >"$work/counted"
# A slow obvious word count.
python3 - "$work/text" >"$work/expected" <<'END'
import collections, sys
for w, n in collections.Counter(open(sys.argv[1], "rb").read().split()).items():
    sys.stdout.buffer.write(w + b"\t" + str(n).encode() + b"\n")
END
LC_ALL=C sort "$work/expected" | cmp - "$work/counted" || fail "wordcount counted wrongly: $work/expected, $work/counted"
say "ok: every word is counted as Python counts them"

say "== a job that runs on"
on c1 'cat >/root/pulse.hcl' <<END
job "pulse" {
  image = "rootfs:/srv/images/busybox"
  stage "run" {
    command = ["sh", "-c", "i=0; until [ \$i = 600 ]; do i=\$((i + 1)); echo \$i; sleep 1; done"]
    tasks   = $((2 * DROVER_NODES))
    disk    = "64MiB"
    resources { cpu = "100m"  memory = "32MiB"  io = "1MiB/s" }
  }
}
END
on c1 'drover job run -detach /root/pulse.hcl'
running() { # HOW MANY: that many programs of tasks run, each with the limits of its job
  local n=0 m
  for m in "${nodes[@]}"; do
    n=$((n + $(on "$m" "$tasks_of" | wc -w)))
    on "$m" 'cd /sys/fs/cgroup/system.slice/drover-tasks.service/tasks && cat [0-9]*/cpu.max | grep -qv "^10000 "' && return 1
  done
  [ $n -eq "$1" ]
}
for _ in $(seq 100); do
  running $((2 * DROVER_NODES)) && break
  sleep 2
done
running $((2 * DROVER_NODES)) || fail "the tasks do not all run: $(on c1 'drover task status pulse')"
on c1 'drover task suspend -level checkpointed pulse run/0' || fail "a task cannot be checkpointed"
level() { on c1 'drover task status pulse' | awk '$1 == "run/0" {print $2}'; }
want "run/0" "$(level)" checkpointed
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
tls=$VAGRANT_DOTFILE_PATH/drover-tls
(while :; do # a line for each answer: milliseconds
  curl -fs -m 2 -o /dev/null --cacert "$tls/ca.pem" --cert "$tls/admin.pem" --key "$tls/admin.key" https://192.168.77.10:7100/healthz && date +%s%3N
  sleep 0.1
done) >"$work/answers" &
poll=$!
for m in "${machines[@]}"; do
  on "$m" 'cat >/tmp/new.deb' <"$work/new.deb"
  on "$m" 'dpkg -i /tmp/new.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; false; }' || fail "$m: the upgrade"
  want "$m: upgraded" "$(on "$m" "dpkg-query -W -f '\${db:Status-Status} \${Version}' drover" | sed 's/ .*+upgraded$/ +upgraded/')" "installed +upgraded"
done
await 60 "the API answers" c1 'drover status'
kill $poll
say "the longest time without an answer of the API: $(awk 'NR > 1 && $1 - last > worst {worst = $1 - last} {last = $1} END {print worst}' "$work/answers") ms"
same "upgrade"
await 120 "nodes are up again" c1 "[ \$(drover node list | grep -c ' up ') -eq $DROVER_NODES ]"
want "run/0 after the upgrade" "$(level)" checkpointed
on c1 'drover task resume pulse run/0' || fail "the checkpointed task cannot be resumed"
await 120 "run/0 runs again" c1 'drover task status pulse | grep -q "^run/0 *running "'

say "== the journal"
for m in "${nodes[@]}"; do on "$m" 'systemctl --no-pager status drover-node drover-tasks | head -30; journalctl -o cat -n 5 -u drover-node' | sed "s/^/    $m: /"; done
on c1 'systemd-analyze security --no-pager drover-coordinator | tail -1'
on n1 'systemd-analyze security --no-pager drover-node | tail -1; systemd-analyze security --no-pager drover-tasks | tail -1'

await 900 "the job ends right" c1 'drover job wait pulse'
tries() { on c1 "drover task status -json $1" | python3 -c 'import json, sys; print(max(len(t["attempts"]) for t in json.load(sys.stdin)["tasks"]))'; }
want "attempts of a task, at most" "$(tries pulse)" 1
say "events of the job: $(on c1 'drover events' | awk '/ pulse /{print $3}' | sort | uniq -c | xargs)"

say "== drain and reboot under load"
on c1 'sed "s/\"pulse\"/\"again\"/; s/ 600 / 60 /" /root/pulse.hcl >/root/again.hcl && drover job run -detach /root/again.hcl'
await 120 "n1 runs tasks" n1 "[ -n \"\$($tasks_of)\" ]"
on c1 'drover node drain n1'
on c1 'sed "s/\"pulse\"/\"elsewhere\"/; s/ 600 / 1 /; s/tasks   = .*/tasks   = 2/" /root/pulse.hcl >/root/elsewhere.hcl && drover job run /root/elsewhere.hcl' || fail "a job beside a drained node"
want "tasks placed on the drained node" "$(on c1 'drover events' | grep -c 'task.placed .*elsewhere .*@n1 ')" 0
await 600 "what ran there ends right" c1 'drover job wait again'
want "attempts of a task, at most" "$(tries again)" 1
on c1 'drover node drain -off n1; sed "s/\"again\"/\"rebooted\"/" /root/again.hcl >/root/rebooted.hcl; drover job run -detach /root/rebooted.hcl'
await 120 "n1 runs tasks" n1 "[ -n \"\$($tasks_of)\" ]"
boot=$(on n1 'cat /proc/sys/kernel/random/boot_id')
on n1 'systemctl reboot' || true
await 400 "n1 is another boot" n1 "[ \$(cat /proc/sys/kernel/random/boot_id) != $boot ]"
await 120 "its services run" n1 'systemctl is-active -q drover-node drover-tasks'
await 120 "n1 is up" c1 'drover node list | grep -q "^n1  *up "'
await 600 "the job ends right in spite of it" c1 'drover job wait rebooted'

say "== doctor"
on n1 'cat >/tmp/faults.sh' <"$here/faults.sh"
on n1 'sh /tmp/faults.sh; code=$?; rm /tmp/faults.sh; exit $code' | sed 's/^/    /' || fail "doctor"
# A NameNode that starts without its DataNodes stays in safe mode.
for k in $(seq "$DROVER_NODES"); do hdfs stop-datanode "$k"; done
hdfs stop-namenode
hdfs start-namenode
on n1 'drover doctor -quick' >"$work/last" || true
grep -A1 '^missing *NameNode .*safe mode' "$work/last" | grep 'cure: ' || fail "doctor does not name the NameNode's safe mode: $(cat "$work/last")"
for k in $(seq "$DROVER_NODES"); do hdfs start-datanode "$k"; done
say "ok: doctor names each fault and its cure"

say "== purge"
on n1 'dpkg --purge drover && rm -f /tmp/new.deb /tmp/drover.deb && cat >/tmp/listing.sh' <"$here/listing.sh"
on n1 'sh /tmp/listing.sh /var/tmp/listing.after; diff /var/tmp/listing.before /var/tmp/listing.after' >"$work/differs" || true
grep '^[<>]' "$work/differs" | sed 's/^/    differs: /' || true
want "lines of the machine's listing that differ from before" "$(grep -c '^[<>]' "$work/differs" || true)" 0
say "done"
vagrant destroy -f >/dev/null 2>&1 || true
