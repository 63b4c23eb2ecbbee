#!/usr/bin/env bash
# The steps of test.sh, which calls it beside the machines: steps.sh ROOT WORK STEPS.
# Each step wants machines that `up` has made, and leaves them fit for any other; only
# `fresh` wants machines after `purge`. WORK/results gets what was measured.
set -Eeuo pipefail
root=$1 work=$2 steps=$3
here=$root/integration/vagrant
begun=$SECONDS
web=http://10.88.0.10:9870/webhdfs/v1
[ "$DROVER_HDFS" != inside ] || web=http://192.168.77.10:9870/webhdfs/v1
machines=(c1)
nodes=()
for k in $(seq "$DROVER_NODES"); do machines+=("n$k") nodes+=("n$k"); done
cd "$root"

say() { printf '[%4ds] %s\n' $((SECONDS - begun)) "$*" >&2; }
measured() { # WHAT VALUE: also for the page
  say "$1: $2"
  printf '%s: %s\n' "$1" "$2" >>"$work/results"
}
fail() {
  say "FAILED: $*"
  echo "FAILED: $*" >>"$work/results"
  exit 1
}
want() { # WHAT GOT WANT
  [ "$2" = "$3" ] || fail "$1: '$2', want '$3'"
  say "ok: $1"
}
address() { if [ "$1" = c1 ]; then echo 192.168.77.10; else echo "192.168.77.1${1#n}"; fi; }
trap 'say "FAILED: line $LINENO: $BASH_COMMAND"' ERR # what `set -e` ends
connect() { # MACHINE COMMAND: as root. One connection for each machine, since a handshake takes seconds where it is emulated.
  ssh -q -i "$DROVER_BOX_DIR/box.key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=20 \
    -o ControlMaster=auto -o "ControlPath=$work/ssh-$1" -o ControlPersist=600 "vagrant@$(address "$1")" "sudo sh -c $(printf %q "$2")"
}
on() { # MACHINE COMMAND: without an input, and once more where the connection broke
  local code=0
  connect "$@" </dev/null || code=$?
  [ $code -eq 255 ] || return $code
  say "$1: the connection broke"
  ssh -q -O exit -o "ControlPath=$work/ssh-$1" "$1" 2>/dev/null || true
  connect "$@" </dev/null
}
put() { connect "$1" "umask 077; cat >$2"; } # MACHINE PATH, of the input
await() { # SECONDS WHAT MACHINE COMMAND
  local end=$((SECONDS + $1))
  until on "$3" "$4" >"$work/last" 2>&1; do
    [ $SECONDS -lt $end ] || { cat "$work/last"; fail "$2: not within $1 s"; }
    sleep 1
  done
  say "ok: $2"
}
indent() { sed "s/^/    ${1:-}/"; }
# Has the machines fetch WORK/www/FILE to PATH: fetch FILE PATH. By HTTP, since scp is
# slow where a machine is emulated; the box has no wget but that of its test image.
fetch() {
  local m server
  python3 -m http.server -d "$work/www" -b 10.88.0.10 8088 >"$work/www.log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    curl -fs -o /dev/null http://10.88.0.10:8088/ && break
    sleep 0.2
  done
  for m in "${machines[@]}"; do
    on "$m" "/srv/images/busybox/bin/busybox wget -q -O $2 http://10.88.0.10:8088/$1" || { kill $server; fail "$m: $1 cannot be fetched"; }
  done
  kill $server
  wait $server 2>/dev/null || true
}
hdfs() { # COMMAND ARG ...: of HdfsHost, on its standard input; waits for the answer
  local before
  before=$(wc -l <"$work/hdfs.out")
  (IFS=$'\t'; echo "$*" >"$work/hdfs.in")
  for _ in $(seq 600); do
    [ "$(wc -l <"$work/hdfs.out")" -gt "$before" ] && break
    sleep 0.2
  done
  tail -1 "$work/hdfs.out" | grep -q '^ok' || fail "HDFS: $*: $(tail -1 "$work/hdfs.out")"
}
# A node that is new looks which suspension levels work there, for minutes on a busy host.
nodes_up() { await 600 "$DROVER_NODES nodes are up" c1 "[ \$(drover node list | grep -c ' up ') -eq $DROVER_NODES ] || { drover node list; false; }"; }

first_job() {
  put c1 /root/first.hcl <<'END'
job "first" {
  image = "rootfs:/srv/images/busybox"
  stage "run" {
    command = ["sh", "-c", "echo first"]
    tasks   = 2
    resources { cpu = "100m"  memory = "32MiB"  io = "256KiB/s" }
  }
}
END
  on c1 'drover job run /root/first.hcl' || fail "the first job"
}

load_text() {
  curl -fsS -o "$work/last" -X PUT "$web/out?op=MKDIRS&permission=777&user.name=root"
  curl -fsS -o "$work/last" -L -X PUT -T "$work/text" "$web/books/a.txt?op=CREATE&user.name=root&blocksize=1048576"
  say "HDFS is up, with $(wc -c <"$work/text") bytes of text"
}

vagrant_up() { vagrant up --no-color "$@" 2>&1 | stdbuf -oL tr '\r' '\n' | grep --line-buffered -v 'Progress: ' | sed -u 's/^/    /'; }
step_up() {
  local fresh
  rm -f "$work"/ssh-*
  head -c 3000000 <(cat "$root"/docs/*/*.md "$root"/scheduler/*/*.go "$root"/coordinator/*/*.go | LC_ALL=C tr -cs '[:alnum:]\n' ' ') >"$work/text"
  [ "$DROVER_HDFS" = inside ] || load_text
  vagrant box add --force --name drover/debian "$DROVER_BOX_DIR/debian.box" >/dev/null
  measured "machines" "$((DROVER_NODES + 1)) of Debian $SUITE with $DROVER_CPUS CPU and $DROVER_MEMORY MB, $([ "${DROVER_DRIVER:-qemu}" = kvm ] && echo KVM || echo emulated), $(basename "${DROVER_PACKAGE:-$(ls -t "$DROVER_DIST"/drover_*_amd64.deb | head -1)}")"
  say "vagrant up"
  fresh=$SECONDS
  # Once more, since Vagrant gives up where a machine on a busy host answers its ssh late.
  vagrant_up || { say "vagrant up, once more" && vagrant_up --provision; } || fail "vagrant up"
  measured "vagrant up, 1 coordinator and $DROVER_NODES nodes" "$((SECONDS - fresh)) s"
  [ "$DROVER_HDFS" != inside ] || load_text
  nodes_up
  first_job
  measured "from no machine to the end of the first job" "1 command, $((SECONDS - fresh)) s"
}

step_mapreduce() {
  local part at=$SECONDS
  curl -fsS -o "$work/last" -X DELETE "$web/out/wordcount?op=DELETE&recursive=true&user.name=root"
  put c1 /root/wordcount.hcl <<'END'
job "wordcount" {
  input  { path = "hdfs:///books/*" }
  output { path = "hdfs:///out/wordcount" }
  stage "map" {
    kind    = "map"
    disk    = "128MiB"
    builtin = ["wordcount"]
    resources { cpu = "200m"  memory = "64MiB"  io = "512KiB/s" }
  }
  stage "reduce" {
    kind     = "reduce"
    tasks    = 2
    disk     = "128MiB"
    builtin  = ["sum"]
    combiner = true
    resources { cpu = "200m"  memory = "64MiB"  io = "512KiB/s" }
  }
}
END
  on c1 'drover job run /root/wordcount.hcl' >"$work/wordcount.out" || { indent <"$work/wordcount.out"; fail "wordcount"; }
  indent <"$work/wordcount.out"
  measured "word count of $(wc -c <"$work/text") bytes" "$((SECONDS - at)) s"
  curl -fsS "$web/out/wordcount?op=LISTSTATUS" | python3 -c 'import json, sys; print("\n".join(f["pathSuffix"] for f in json.load(sys.stdin)["FileStatuses"]["FileStatus"] if f["length"]))' >"$work/parts"
  while read -r part; do curl -fsSL "$web/out/wordcount/$part?op=OPEN&user.name=root"; done <"$work/parts" | LC_ALL=C sort >"$work/counted"
  # A slow obvious word count.
  python3 - "$work/text" <<'END' | LC_ALL=C sort >"$work/expected"
import collections, sys
for w, n in collections.Counter(open(sys.argv[1], "rb").read().split()).items():
    sys.stdout.buffer.write(w + b"\t" + str(n).encode() + b"\n")
END
  cmp "$work/expected" "$work/counted" || fail "wordcount counted wrongly: $work/expected, $work/counted"
  say "ok: every word is counted as Python counts them"
}

# A job whose tasks count until they are told to end, two on each node: load NAME [TASKS
# [CPU]]. They ask for little I/O: the disk of an emulated machine was measured at 1.8 MB/s
# on a busy host. Each writes every number, so that its output shows whether one process counted
# them all.
load() {
  on c1 "drover job stop $1" >"$work/last" 2>&1 || true # of a step that failed
  put c1 "/root/$1.hcl" <<END
job "$1" {
  image = "rootfs:/srv/images/busybox"
  stage "run" {
    command = ["sh", "-c", "trap 'echo end; exit 0' TERM; i=0; while :; do i=\$((i + 1)); echo \$i; sleep 1; done"]
    tasks   = ${2:-$((2 * DROVER_NODES))}
    disk    = "64MiB"
    resources { cpu = "${3:-400m}"  memory = "32MiB"  io = "256KiB/s" }
  }
}
END
  on c1 "drover job run -detach /root/$1.hcl" || fail "job $1"
}
# The shells of tasks, not their children that are still shells: a task sleeps in a child.
is_sh='is_sh() { [ "$(cat /proc/$1/comm 2>/dev/null)" = sh ]; }'
tasks_of=$is_sh'; for p in $(cat /sys/fs/cgroup/system.slice/drover-tasks.service/tasks/*/container/cgroup.procs 2>/dev/null); do is_sh $p && ! is_sh "$(sed -n "s/^PPid:.//p" /proc/$p/status 2>/dev/null)" && echo $p; done | sort | xargs'
limits_of='cd /sys/fs/cgroup/system.slice/drover-tasks.service/tasks && for g in [0-9]*; do echo $g $(cat $g/cpu.max $g/memory.max $g/io.max $g/pids.max); done'
running() { # HOW MANY: that many programs of tasks run
  local n=0 m
  for m in "${nodes[@]}"; do n=$((n + $(on "$m" "$tasks_of" | wc -w))); done
  [ $n -eq "$1" ]
}
await_running() { # HOW MANY JOB
  local end=$((SECONDS + 600))
  while [ $SECONDS -lt $end ]; do
    if running "$1"; then
      say "ok: $1 tasks run"
      return
    fi
    sleep 1
  done
  fail "not $1 tasks run: $(on c1 "drover task status $2; drover job why $2; drover node list")"
}
level() { on c1 "drover task status $1" | awk '$1 == "run/0" {print $2}'; }
declare -A pids limits holder
base=/sys/fs/cgroup/system.slice/drover-tasks.service
remember() { # HOW MANY TASKS have cgroups: what `same` compares with
  local m n=0
  for m in "${nodes[@]}"; do
    pids[$m]=$(on "$m" "$tasks_of") limits[$m]=$(on "$m" "$limits_of") holder[$m]=$(on "$m" 'systemctl show -P MainPID drover-tasks')
    [ -n "${pids[$m]}" ] || fail "$m runs no task"
    # 32 MiB and what the harness needs, which each machine measures for itself.
    n=$((n + $(grep ' rbps=262144 wbps=262144 ' <<<"${limits[$m]}" | awk '$2 == 40000 && $3 == 100000 && $4 > 32 * 2^20 && $4 <= 96 * 2^20' | wc -l)))
    want "$m: the holder is in its leaf" "$(on "$m" "cat $base/holder/cgroup.procs")" "${holder[$m]}"
    want "$m: drover-node.service holds no process" "$(on "$m" 'cat /sys/fs/cgroup/system.slice/drover-node.service/cgroup.procs | wc -l')" 0
    say "$m: $(tr '\n' ';' <<<"${limits[$m]}")"
  done
  [ $n -eq "$1" ] || for m in "${nodes[@]}"; do say "$m now: $(on "$m" "$limits_of" | tr '\n' ';')"; done
  want "tasks with the limits of the job" $n "$1"
}
same() { # WHAT
  local m
  for m in "${nodes[@]}"; do
    want "$m: $1: the same processes" "$(on "$m" "$tasks_of")" "${pids[$m]}"
    want "$m: $1: the same limits" "$(on "$m" "$limits_of")" "${limits[$m]}"
    want "$m: $1: the same holder" "$(on "$m" 'systemctl show -P MainPID drover-tasks')" "${holder[$m]}"
  done
}
# Tells the tasks of a job to end, also those that start again meanwhile, and wants
# that it succeeds: finish JOB.
finish() {
  local m end=$((SECONDS + 400))
  until on c1 "drover job list -all 2>/dev/null | grep ' $1 ' | grep -q succeeded || drover job status $1 | grep -qw succeeded"; do
    [ $SECONDS -lt $end ] || fail "$1 does not end: $(on c1 "drover task status $1")"
    for m in "${nodes[@]}"; do on "$m" "for p in \$($tasks_of); do kill -TERM \$p; done" || true; done
    sleep 2
  done
  on c1 "drover job wait $1" >"$work/last" 2>&1 || fail "$1: $(tail -3 "$work/last")"
  say "ok: $1 ends right"
}
attempts() { # JOB: "TASKS tasks, N restarted, M failed"
  on c1 "drover task status -json $1" | python3 -c '
import json, sys
tasks = json.load(sys.stdin)["tasks"]
attempts = [a for t in tasks for a in t["attempts"]]
failed = sum(a["seen"]["exit_code"] != 0 or a["seen"]["cause"] != "CAUSE_UNSPECIFIED" for a in attempts)
print("%d tasks, %d restarted, %d failed" % (len(tasks), len(attempts) - len(tasks), failed))'
}
# Each task's output has every number from 1 once, and the end: unbroken JOB.
unbroken() {
  local k n
  n=$(on c1 "drover task status -json $1" | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["tasks"]))')
  for k in $(seq 0 $((n - 1))); do
    on c1 "drover task logs $1 run/$k" | awk '$1 == "end" {ended = 1; next} $1 != NR {bad = 1} END {exit bad || !ended}' || fail "$1 run/$k: its output is not 1, 2, ... end: $(on c1 "drover task logs $1 run/$k" | tail -3 | xargs)"
  done
  say "ok: the output of each of $n tasks has every number once"
}

step_restart() {
  local m before
  load reloaded
  await_running $((2 * DROVER_NODES)) reloaded
  remember $((2 * DROVER_NODES))
  before=$(attempts reloaded) # a busy host may have failed to start some at first
  for m in "${nodes[@]}"; do
    on "$m" 'systemctl daemon-reload && systemctl restart drover-node && systemctl is-active -q drover-node && systemctl reload drover-node && systemctl daemon-reexec' || fail "$m: restart"
  done
  same "daemon-reload, restart, reload, daemon-reexec"
  for m in "${nodes[@]}"; do await 60 "$m: the journal of drover-node says that it is ready" "$m" 'journalctl -o cat -n 50 -u drover-node | grep -q "^ready: node "'; done
  nodes_up
  finish reloaded
  measured "daemon-reload, restart, reload and daemon-reexec of each node under load" "$(attempts reloaded)"
  want "restarted and failed tasks, as before" "$(attempts reloaded)" "$before"
  unbroken reloaded
  measured "systemd-analyze security" "$(on c1 'systemd-analyze security --no-pager drover-coordinator | tail -1' | grep -o 'drover.*: [0-9.]*'); $(on n1 'for u in drover-node drover-tasks; do systemd-analyze security --no-pager $u | tail -1; done' | grep -o 'drover.*: [0-9.]*' | xargs)"
}

step_upgrade() {
  local m tls poll version at
  load upgraded
  await_running $((2 * DROVER_NODES)) upgraded
  on c1 'drover task suspend -level checkpointed upgraded run/0' || fail "a task cannot be checkpointed"
  want "run/0" "$(level upgraded)" checkpointed
  remember $((2 * DROVER_NODES - 1))
  rm -rf "$work/deb" "$work/www"
  mkdir "$work/www"
  dpkg-deb -R "$(ls -t "$DROVER_DIST"/drover_*_amd64.deb | head -1)" "$work/deb"
  version=$(sed -n 's/^Version: //p' "$work/deb/DEBIAN/control")+upgraded.$(date +%s)
  sed -i "s/^Version: .*/Version: $version/" "$work/deb/DEBIAN/control"
  dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/deb" "$work/www/new.deb" >/dev/null
  tls=$VAGRANT_DOTFILE_PATH/drover-tls
  fetch new.deb /tmp/new.deb
  (while :; do # a line for each answer: milliseconds
    curl -fs -m 2 -o /dev/null --cacert "$tls/ca.pem" --cert "$tls/admin.pem" --key "$tls/admin.key" https://192.168.77.10:7100/healthz && date +%s%3N
    sleep 0.1
  done) >"$work/answers" &
  poll=$!
  trap "kill $poll" EXIT
  at=$SECONDS
  for m in "${machines[@]}"; do
    on "$m" 'dpkg -i /tmp/new.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; false; }; rm -f /tmp/new.deb /tmp/dpkg.log' || fail "$m: the upgrade"
    [ "$m" != c1 ] || [ -z "${FROM:-}" ] || { nodes_up && first_job && measured "a job with the upgraded coordinator and nodes of $FROM" "succeeded"; }
    want "$m: upgraded" "$(on "$m" "dpkg-query -W -f '\${db:Status-Status} \${Version}' drover")" "installed $version"
  done
  await 60 "the API answers" c1 'drover status'
  measured "upgrade of the package on all $((DROVER_NODES + 1)) machines, one after the other" "$((SECONDS - at)) s"
  kill $poll
  trap - EXIT
  measured "longest time without an answer of the API meanwhile" "$(awk 'NR > 1 && $1 - last > worst {worst = $1 - last} {last = $1} END {printf "%.1f s", worst / 1000}' "$work/answers")"
  same "upgrade"
  nodes_up
  want "run/0 after the upgrade" "$(level upgraded)" checkpointed
  on c1 'drover task resume upgraded run/0' || fail "the checkpointed task cannot be resumed"
  await 120 "run/0 runs again" c1 'drover task status upgraded | grep -q "^run/0 *running "'
  finish upgraded
  measured "a job through the upgrade, one task checkpointed before and resumed after it" "$(attempts upgraded)"
  want "restarted and failed tasks" "$(attempts upgraded)" "$((2 * DROVER_NODES)) tasks, 0 restarted, 0 failed"
  unbroken upgraded
}

step_drain() {
  load drained
  await_running $((2 * DROVER_NODES)) drained
  remember $((2 * DROVER_NODES))
  on c1 'drover node drain n1' || fail "drain"
  load beside 1 100m
  await 120 "a job beside the drained node runs" c1 'drover task status beside | grep -q "^run/0 *running "'
  want "it was placed on n1, on another node" "$(on c1 'drover task status -json beside' | grep -o '"node": "[^"]*"' | sed 's/"node": "n1"/n1/; s/"node": .*/another/' | sort | uniq -c | xargs)" "1 another"
  want "n1: the same processes" "$(on n1 "$tasks_of")" "${pids[n1]}"
  finish beside
  finish drained
  measured "drain of n1 under load" "$(attempts drained)"
  want "restarted and failed tasks" "$(attempts drained)" "$((2 * DROVER_NODES)) tasks, 0 restarted, 0 failed"
  on c1 'drover node drain -off n1'
  nodes_up
}

step_reboot() {
  local boot at
  load rebooted
  await_running $((2 * DROVER_NODES)) rebooted
  boot=$(on n1 'cat /proc/sys/kernel/random/boot_id')
  at=$SECONDS
  on n1 'systemctl reboot' || true
  ssh -O exit -o "ControlPath=$work/ssh-n1" n1 2>/dev/null || true
  await 600 "n1 is another boot" n1 "[ \$(cat /proc/sys/kernel/random/boot_id) != $boot ]"
  await 240 "its services run" n1 'systemctl is-active -q drover-node && systemctl is-active -q drover-tasks'
  nodes_up
  measured "reboot of n1, until it is up in the cluster" "$((SECONDS - at)) s"
  await_running $((2 * DROVER_NODES)) rebooted
  finish rebooted
  measured "a job through the reboot" "$(attempts rebooted)"
  want "restarted tasks are those of n1" "$(attempts rebooted | cut -d, -f1,2)" "$((2 * DROVER_NODES)) tasks, 2 restarted"
}

step_doctor() {
  local k
  put n1 /tmp/faults.sh <"$here/faults.sh"
  on n1 'sh /tmp/faults.sh; code=$?; rm /tmp/faults.sh; exit $code' >"$work/faults.out" || { indent <"$work/faults.out"; fail "doctor"; }
  # A NameNode that starts without its DataNodes stays in safe mode.
  for k in $(seq "$DROVER_NODES"); do hdfs stop-datanode "$k"; done
  hdfs stop-namenode
  hdfs start-namenode
  on n1 'drover doctor -quick' >"$work/last" || true
  for k in $(seq "$DROVER_NODES"); do hdfs start-datanode "$k"; done
  grep -A1 '^missing *NameNode .*safe mode' "$work/last" | sed 's/  */ /g' >>"$work/faults.out" || fail "doctor does not name the NameNode's safe mode: $(cat "$work/last")"
  tail -1 "$work/faults.out" | grep -q 'cure: .' || fail "no cure for safe mode: $(tail -2 "$work/faults.out")"
  indent <"$work/faults.out"
  cat "$work/faults.out" >>"$work/results"
  nodes_up
  measured "faults that doctor names with a cure" "$(grep -c 'cure: ' "$work/faults.out")"
}

step_snapshot() {
  local at m
  load kept
  await_running $((2 * DROVER_NODES)) kept
  on c1 'drover task suspend kept run/0' || fail "suspend"
  remember $((2 * DROVER_NODES))
  on c1 'rm -f /var/tmp/backup.tar.gz; drover operator snapshot save /var/tmp/backup.tar.gz && drover operator snapshot inspect /var/tmp/backup.tar.gz' | indent || fail "snapshot save"
  load unknown 1 100m # after the archive
  await 120 "a job that the archive does not know runs" c1 'drover task status unknown | grep -q "^run/0 *running "'
  at=$SECONDS
  on c1 'systemctl kill -s KILL drover-coordinator; systemctl stop drover-coordinator; rm -rf /var/lib/drover/coordinator' || fail "losing the disk"
  on c1 'drover operator snapshot restore /var/tmp/backup.tar.gz && systemctl start drover-coordinator' | indent || fail "snapshot restore"
  nodes_up
  measured "from the loss of the coordinator's disk to all nodes up with the restored state" "$((SECONDS - at)) s"
  want "run/0 after the restoration" "$(level kept)" frozen
  await 120 "it is gone" c1 '! drover job status unknown 2>/dev/null'
  await 120 "its node has frozen its task" c1 'drover operator runs list | grep -q "unknown .*frozen"'
  on c1 'drover operator runs list' | indent
  on c1 'drover operator runs list | awk "NR > 1 { print \$1, \$2 }" | while read -r node run; do drover operator runs kill "$node" "$run" </dev/null; done' | indent || fail "runs kill"
  for m in "${nodes[@]}"; do await 120 "$m: and its task too" "$m" "[ \"\$($tasks_of)\" = '${pids[$m]}' ]"; done
  same "restoration"
  on c1 'drover task resume kept run/0; rm /var/tmp/backup.tar.gz' || fail "resume"
  finish kept
  measured "a job through the loss" "$(attempts kept)"
  want "restarted and failed tasks" "$(attempts kept)" "$((2 * DROVER_NODES)) tasks, 0 restarted, 0 failed"
  unbroken kept
}

step_purge() {
  local m
  for m in "${nodes[@]}" c1; do
    on "$m" 'dpkg --purge drover' >"$work/last" 2>&1 || fail "$m: $(cat "$work/last")"
    on "$m" 'rm -f /tmp/new.deb /tmp/drover.deb'
    put "$m" /tmp/listing.sh <"$here/listing.sh"
    on "$m" 'sh /tmp/listing.sh /var/tmp/listing.after; diff /var/tmp/listing.before /var/tmp/listing.after' >"$work/differs.$m" || true
    grep '^[<>]' "$work/differs.$m" | indent "$m differs: " || true
  done
  for m in "${machines[@]}"; do
    measured "$m: lines of its listing ($(on "$m" 'wc -l </var/tmp/listing.before') lines: files, accounts, mounts, cgroups, units, processes, containers) that a purge leaves different" "$(grep -c '^[<>]' "$work/differs.$m" || true)"
    [ ! -s "$work/differs.$m" ] || fail "$m: a purge leaves: $(grep '^[<>]' "$work/differs.$m" | head -5)"
  done
}

# The steps of docs/how-to/install.md, typed at a machine that reaches the others by
# ssh. `typed` counts; a loop over machines is one command.
commands=0
typed() { # WORDS OF THE COMMAND
  commands=$((commands + 1))
  say "$commands. $*"
}
step_fresh() {
  local at=$SECONDS m k found tls=$work/fresh again="drover config apply /root/n1.bundle" nodes_at=() installs=()
  rm -rf "$tls"
  # What a person has wrong: a firewall, a clock, no criu.
  on n1 'iptables -I OUTPUT -p tcp --dport 7100 -j DROP; timedatectl set-ntp false 2>/dev/null; date -s "+1 hour" >/dev/null; mv /usr/sbin/criu /root/criu.away'
  typed "drover config bundle coordinator ... c1=$(address c1)"
  "$DROVER_DIST/drover-linux-amd64" config bundle coordinator -dir "$tls" -lease "$DROVER_LEASE" -allow-image rootfs:/srv/images/ "c1=$(address c1)" | indent || fail "config bundle coordinator"
  for m in "${nodes[@]}"; do nodes_at+=("$m=$(address "$m")"); done
  typed "drover config bundle node -coordinator https://$(address c1):7100 ${nodes_at[*]}"
  "$DROVER_DIST/drover-linux-amd64" config bundle node -dir "$tls" -coordinator "https://$(address c1):7100" "${nodes_at[@]}" | indent || fail "config bundle node"
  mkdir -p "$work/www"
  cp "$(ls -t "$DROVER_DIST"/drover_*_amd64.deb | head -1)" "$work/www/drover.deb"
  fetch drover.deb /tmp/drover.deb
  say "the package is on the machines after $((SECONDS - at)) s"
  typed "for m in ${machines[*]}: copy the package and its bundle, apt-get install ./drover.deb"
  for m in "${machines[@]}"; do
    put "$m" "/root/$m.bundle" <"$tls/$m.bundle" || fail "$m: its bundle"
    on "$m" 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /tmp/drover.deb' >"$work/install.$m" 2>&1 & installs+=($!)
  done
  for k in "${!machines[@]}"; do wait "${installs[k]}" || fail "install: $(cat "$work/install.${machines[k]}")"; done
  typed "for m in ${machines[*]}: drover config apply \$m.bundle"
  for m in "${machines[@]}"; do
    found=$(on "$m" "drover config apply /root/$m.bundle" 2>&1) && continue
    grep -A1 '^missing' <<<"$found" | indent
    [ "$m" = n1 ] || fail "$m: config apply: $found"
    want "n1: nothing was started" "$(on n1 'systemctl is-active drover-node; systemctl is-enabled drover-node; true' | xargs)" "inactive disabled"
  done
  # The cures, as it names them, from what it found at first to what it finds then.
  found=$(on n1 "$again" 2>&1) && fail "n1: its mistakes are not named: $found"
  grep -A1 '^missing *coordinator ' <<<"$found" | grep -q 'cure: ' || fail "the firewall is not named: $found"
  grep -A1 -E '^(missing|degraded) *criu ' <<<"$found" | grep -q 'cure: apt-get install criu' || fail "criu is not named: $found"
  typed "n1: open the port, apt-get install criu; $again"
  found=$(on n1 "iptables -D OUTPUT -p tcp --dport 7100 -j DROP; mv /root/criu.away /usr/sbin/criu; $again" 2>&1) && fail "the clock is not named: $found" # without a network criu cannot be downloaded
  grep -A1 '^missing' <<<"$found" | indent
  grep -A1 '^missing *clock ' <<<"$found" | grep -q 'cure: ' || fail "the clock is not named: $found"
  typed "n1: set the clock; $again"
  found=$(on n1 "date -s '-1 hour' >/dev/null; $again" 2>&1) || fail "n1: after the cures: $found"
  typed "drover job run first.hcl"
  first_job
  for m in "${machines[@]}"; do on "$m" "rm /root/$m.bundle"; done
  measured "from machines without the package to the end of the first job, by install.md, with a firewall, a wrong clock and no criu" "$commands commands with the cures, $((SECONDS - at)) s"
  [ $commands -le 8 ] || fail "$commands commands, 8 are allowed"
  if [ $((SECONDS - at)) -gt 600 ]; then say "longer than the 10 minutes that metal may take"; fi
  nodes_up
}

step_down() { vagrant destroy -f --no-color >"$work/last" 2>&1 || fail "vagrant destroy: $(tail -3 "$work/last")"; }

case " $steps " in *" up "*) : >"$work/results" ;; esac
for s in $steps; do
  say "== $s"
  echo "== $s" >>"$work/results"
  at=$SECONDS
  "step_$s"
  measured "step $s" "passed after $((SECONDS - at)) s"
done
