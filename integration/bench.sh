#!/usr/bin/env bash
# The benchmarks of `make bench`, natively on this machine, with tables in
# out/bench. Each part also writes its page of docs/measured, with date, machine
# and commit, and all figures go to one table, summary.md. They need neither root nor network. Arguments select parts: dev, harness,
# scheduler, coordinator; profile, page, million, worst, worlds, simulations, mutants, curves, floods, day, fuzz, damage, simulator; hdfs (Java); and limits, task, suspend, suspend-large, preempt, clone,
# which run on machines of the test bed (root, make deps).
#
#   RUNS=5       runs of each benchmark; coordinator and page: three at least
#   REPEATS=1    preempt: runs of each mode, about 3 minutes each
#   MODES=...    preempt: alone,suspend,kill,none
#   HOLD=100     suspend: MiB of memory of the task; above 200 the machines must be
#                larger, as in suspend-large
#   TESTS=no     clone: without `make test`, which takes most of an hour
#   LEVELS=...   suspend: frozen,swapped,checkpointed
#   ROUNDS=3     suspend: rounds of each level but frozen, and of criu, runc and ctr alone; task: rounds of both sides
#   TASKS=10     task: containers of each side in a round
#   JOBS=50000   day: jobs of ten tasks each
#   INPUTS=...   fuzz: inputs of each target, 10 million if it is not set
#   WORLDS=...   worlds: random worlds, 100,000 if it is not set
#   SIMULATIONS=2000  simulations: simulated clusters of each processor
#   FUZZTIME=0s  fuzz: before them, how long Go's engine runs for each target; its inputs count too
#   RECORD=no    do not write docs/measured
#   MEM=1024     memory of each machine, in MB
#   NODES=3      number of machines
#   CPUS=1       processors of each machine; the host needs as many idle ones
#   TMPDIR=...   folder of the data; what waits for a disk says so where this is memory
#   TEXT='...'   pattern of text files for the word counts; default: generated words
#
# A figure more than a tenth worse than on the page of the last release (the newest tag; HEAD while there
# is none), on the same quiet machine, is printed and stands at the end of the page; a ratio to a peer of
# the same run on any machine. The summary does the same with its rows.
#
# dev counts words beside awk and, where there is Java, beside Hadoop, whose jars are in the cache of the test bed or fetched by
# Maven; where a peer is absent, its row says so.
#
# `bench.sh summary` measures nothing: it writes docs/measured/summary.md and summary.jsonl, one table of the figures
# of all pages with their targets of today, peers and ratios. Each run ends with it.
#
# A missed target is shown and makes the exit code 1. Busy machines miss targets,
# so no required check runs this script.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
out=out/bench
runs=${RUNS:-5}
mkdir -p "$out" bin
code=0
exec 3>&2 # progress that does not belong on a page
. integration/targets.sh

[ "$*" = summary ] || make -s build || exit 1
go build -o bin/devbench ./integration/cmd/devbench && go build -o bin/record ./integration/cmd/record || exit 1
settings= # the settings above that are not defaults, for the recorded command
for v in RUNS REPEATS MODES HOLD LEVELS ROUNDS TASKS TESTS JOBS INPUTS WORLDS SIMULATIONS FUZZTIME MEM NODES CPUS TEXT TMPDIR; do
  [ -n "${!v:-}" ] && settings+="$v=${!v@Q} "
done

# cpu prints the CPU time in seconds of the whole machine, and that of this script's children that have ended.
# times must be the script's own: a subshell has had no children.
cpu() {
  times >"$out/times"
  awk -v ticks="$(getconf CLK_TCK)" '/^cpu / { machine = ($2 + $3 + $4 + $7 + $8 + $9) / ticks }
    FILENAME != "/proc/stat" && FNR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "m"); own += 60 * t[1] + t[2] } }
    END { print machine, own }' /proc/stat "$out/times"
}

# part NAME COMMAND... runs a part and keeps the previous output of the same part.
part() {
  local name=$1 start=$SECONDS failed= others commit=; shift
  echo "== $name"
  [ -f "$out/$name.txt" ] && mv "$out/$name.txt" "$out/$name.before.txt"
  [ "${RECORD:-}" = no ] || commit=$(bin/record -print-commit) # a part may write to the repository
  cpu >"$out/cpu.before"
  "$@" 2>&1 | tee "$out/$name.txt"
  [ "${PIPESTATUS[0]}" -eq 0 ] || { code=1; failed=-failed; }
  cpu >"$out/cpu.after"
  others=$(paste "$out/cpu.before" "$out/cpu.after" | awk -v s=$((SECONDS - start)) '{ v = ($3 - $1 - $4 + $2) / (s ? s : 1); print (v > 0 ? v : 0) }')
  [ "${RECORD:-}" = no ] || bin/record -part "$name" -command "${settings}integration/bench.sh $name" -commit "$commit" -others "$others" $failed "docs/measured/$name.md" <"$out/$name.txt" || code=1
  echo "   $name: after $((SECONDS - start)) s; in $out/$name.txt$([ -f "$out/$name.before.txt" ] && echo ", the previous output in $name.before.txt")"
}

# median_ratios WHAT prints the median and the range of ratios; a line of its input is a name and a ratio.
median_ratios() {
  sort -k1,1 -k2,2g | awk -v what="$1" '{ all[$1] = all[$1] " " $2; n[$1]++ }
    END { for (k in all) { split(all[k], r, " "); printf "%s: %.3f times as many placements %s, median of %d, %.3f to %.3f\n", k, (r[int((n[k] + 1) / 2)] + r[int(n[k] / 2) + 1]) / 2, what, n[k], r[1], r[n[k]] } }' | sort
}

# beside FLAGS OTHER... runs `drover bench coordinator` with the first flags and with each of the others in turn, three times
# at least, so that a machine that becomes slower burdens all; then the ratios of the placements of each run to those
# with the first flags.
beside() {
  local i flags
  for i in $(seq $((runs < 3 ? 3 : runs))); do
    for flags in "$@"; do
      bin/drover bench coordinator $flags || return 1
    done
  done | tee "$out/beside.txt" && awk -F '  +' '
    $1 == "SERVERS" { for (i = 1; i <= NF; i++) column[$i] = i; next }
    /^[0-9]+  / { k = "servers=" $column["SERVERS"] ",sync=" $column["SYNC"] ",pages=" $column["PAGES"]
      if (!(k in n)) order[++kinds] = k
      rate[k, ++n[k]] = $column["PLACEMENTS/S"] }
    END { for (j = 2; j <= kinds; j++) for (i = 1; i <= n[order[j]]; i++) print order[j], rate[order[j], i] / rate[order[1], i] }' "$out/beside.txt" |
    median_ratios "as with ${1:-one coordinator}"
}

# 1. drover dev: start, a job of one task, many short tasks beside xargs, the built-in word
# count beside awk and Hadoop, a sort beside sort(1), both also beside a copy in memory and dd as the limits of the machine, and
# the word count in Python with and without Drover.
dev() { bin/devbench -runs "$runs" -text "${TEXT:-}"; }

# 2. The harness alone: partition, sort and spill, merge, programs, in MB/s per
# core. Python is in part 1.
harness() { go test -run '^$' -bench . -skip Python -benchtime 1x -count "$runs" -cpu 1 ./mapreduce/...; }

# 3. Placements per second of the schedulers on generated clusters.
scheduler() {
  bin/drover bench scheduler -nodes 1000 -nodes 10000 -runs "$runs" &&
    bin/drover bench scheduler -nodes 1000 -nodes 10000 -features all -runs "$runs" &&
    bin/drover bench scheduler -nodes 1000 -nodes 10000 -features all -planning -runs "$runs"
}

# Writes the profile that bin/drover is compiled with, of decisions, simulation and a coordinator, and compares
# binaries with and without it, in turn, with other inputs than those of the profile.
profile() {
  local dir i name kind pgo=cmd/drover/drover.pgo
  dir=$(mktemp -d)
  awk 'BEGIN{srand(1);for(i=0;i<100000;i++){g=-log(1-rand())*0.000958;t+=g;printf "job%d\t%.4f\t%.4f\t1342177280\t0\t0\n",i,t,g}}' >"$dir/maps.tsv" &&
    go build -trimpath -o "$dir/plain" ./cmd/drover &&
    "$dir/plain" sim run -workload "$dir/maps.tsv" -format swim -rule tenants=20 -nodes 10000 -profile "$dir/sim" -json >/dev/null 2>&1 &&
    "$dir/plain" bench scheduler -features all -nodes 1000 -nodes 10000 -placements 500000 -profile "$dir/scheduler" >/dev/null &&
    "$dir/plain" bench scheduler -placements 2000000 -profile "$dir/fifo" >/dev/null &&
    "$dir/plain" bench coordinator -profile "$dir/coordinator" >/dev/null &&
    go tool pprof -proto "$dir/sim" "$dir/scheduler" "$dir/fifo" "$dir/coordinator" >"$dir/merged" 2>/dev/null && cp "$dir/merged" "$pgo" &&
    go build -trimpath -pgo="$pgo" -o "$dir/profiled" ./cmd/drover &&
    for i in $(seq "$runs"); do
      for kind in "scheduler -features all -planning -seed 2 -nodes 5000" "coordinator -nodes 500 -jobs 50 -tasks 1000"; do
        for name in plain profiled; do
          printf '%s %s %s %.0f placements per CPU second\n' "$i" "${kind%% *}" "$name" "$("$dir/$name" bench $kind -json 2>/dev/null | sed -E 's/.*"placements_per_cpu_s":([0-9.]+).*/\1/')"
        done
      done
    done | tee "$dir/rates" &&
    awk '{ rate[$1 $2 $3] = $4 } $3 == "profiled" { print $2, rate[$1 $2 "profiled"] / rate[$1 $2 "plain"] }' "$dir/rates" | median_ratios "with the profile"
  local status=$?
  rm -rf "$dir"
  return $status
}

# The longest cycle of the schedulers with inputs that are meant to make cycles long.
worst() { bin/drover bench scheduler -worst -runs 3 2>&3; }

# The guarantees of random worlds of several stages, each under all policies that give guarantees. It goes on
# where it was stopped: what was done is in the file LEDGER.
worlds() { go run ./integration/cmd/worlds -ledger "${LEDGER:-docs/measured/worlds.jsonl}" -worlds "${WORLDS:-100000}"; }

# Simulated clusters with jobs and faults from new seeds: a process for each processor, and how many an hour all of them
# run by the clock. Stacks begin as large as they were on average, which saves copies: a simulation has thousands.
simulations() {
  local n=${SIMULATIONS:-2000} program=$PWD/$out/simcluster.test first began pids=() status=0 i
  go test -c -o "$program" ./integration/simcluster || return 1
  first=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
  began=$(date +%s%N)
  for i in $(seq 0 $(($(nproc) - 1))); do
    (cd integration/simcluster && GODEBUG=adaptivestackstart=1 DROVER_SIMULATIONS=$n RAPID_SEED=$((first + 1 + i * n)) \
      exec "$program" -test.run '^TestSimulatedCluster$' -test.v -test.timeout 3h >"$program.$i.log" 2>&1) &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || status=1; done
  began=$(($(date +%s%N) - began))
  grep -ahE 'VIOLATED|^panic|RAPID_SEED=|on each processor' "$program".*.log
  awk -v n="$((n * $(nproc)))" -v s="$((began / 1000000))e-3" -v p="$(nproc)" -v failed="$status" 'BEGIN { rate = 3600 * n / s
    printf "%d simulations in %.1f s: %.0f an hour on %d processors; target 100,000: %s\n", n, s, rate, p, (failed ? "failed" : rate >= 100000 ? "met" : "MISSED")
    exit (failed || rate < 100000) }'
}

# Bugs put in on purpose: how often simulated clusters find each, and what that costs.
mutants() { DROVER_MUTATIONS=1 go test -count=1 -v -run '^TestMutations$' -timeout 3h ./integration/simcluster; }

# What the floods of one user cost another one.
floods() { bin/drover bench floods; }

# How the costs grow with nodes, tasks, jobs, tenants and blocks, with slopes; and one workload on several clusters.
curves() { go build -o bin/curves ./integration/cmd/curves && bin/curves -drover bin/drover; }

# A day of short jobs, and two hours of it as one job, with what grows: memory, goroutines, descriptors,
# attempts, folders, files, disk.
day() {
  local failed=0
  bin/drover bench day -jobs "${JOBS:-50000}" || failed=1
  echo
  bin/drover bench day -shape one -logs 0 -jobs $((${JOBS:-50000} / 12)) || failed=1
  return $failed
}

# Millions of inputs for each fuzz target: failures, and the most that one input allocates. It goes
# on where it was stopped, on any machine: what was done is in the file LEDGER.
fuzz() { go run ./integration/cmd/fuzz -ledger "${LEDGER:-docs/measured/fuzz.jsonl}" -inputs "${INPUTS:-10000000}" -time "${FUZZTIME:-0s}"; }

# 10,000 rounds of damage, and more, to what coordinator and node keep: log, snapshots, files of
# the past, uploads, keys, certificates, caches, images of tasks, histories, audit log, kept logs.
damage() {
  DROVER_SOAK=1 go test -count 1 -timeout 12h -v -run 'Damage' ./coordinator/... ./node/... ./runtime/... ./internal/... ./cgroups/... ./scheduler/sim/trace 2>&1 |
    grep -E '^(---|ok|FAIL|panic)|rounds of damage|[0-9]+ of [0-9]+ (found|refused|named)|_test.go:.*(seed|SEED)' | grep -v 'no test'
}

# A file of one block read from HDFS by one task, beside HDFS's own client.
hdfs() {
  go build -o bin/testbed ./integration/cmd/testbed && bin/testbed hdfs -- bin/devbench -runs "$runs" -parts hdfs
}

# The whole live way through one coordinator: submissions, decisions, log, nodes, ends;
# the same without waiting for the disk, and with three coordinators, of which the leader is killed at the end;
# a restart with 100,000 jobs, and how long a snapshot of a million live tasks stops the log. Its targets are in targets.sh.
coordinator() {
  {
    beside "" "-no-sync" "-servers 3" &&
      go test -run '^$' -bench 'Restart$' -benchtime 3x ./coordinator && go test -run '^$' -bench 'SnapshotPause$' -benchtime 3x ./coordinator/facts
  } | tee "$out/coordinator.measured" && coordinator_targets <"$out/coordinator.measured"
}

# The web page: a browser that opens the pages of 10,000 nodes and 200,000 attempts (first
# paint, bytes, longest task of its main thread), and what 50 open pages cost a coordinator:
# the placements beside those of the same coordinator without them.
page() {
  go test -run '^$' -bench LargeCluster -benchtime 1x -count "$runs" ./integration/browser &&
    beside "-no-sync -alone 1 -submissions 100" "-no-sync -alone 1 -submissions 100 -pages 50"
}

# A million pending tasks on 10,000 and 100,000 nodes, with all features; its targets are in targets.sh. And events per second of the
# simulator on one core.
million() {
  bin/drover bench scheduler -nodes 10000 -nodes 100000 -tasks 1000000 -features all -runs "$runs" | tee "$out/million.measured" &&
    million_targets <"$out/million.measured"
}
simulator() { GOMAXPROCS=1 go test -run '^$' -bench 'Events/bare/1000$' -benchtime 1x -count "$runs" ./scheduler/sim/engine; }

# 4. How much of its limits a container gets from the kernel, over ten seconds of
# each kind of work, and the rate of a neighbour of a disk hog.
limits() {
  go build -o bin/testbed ./integration/cmd/testbed && bin/testbed run -nodes 1 -mem 1024 -- \
    go test -count 1 -timeout 20m -v -run '^TestEnforcementOnMachine$' ./runtime/containerd | grep -E '% of|whole disk|hog|^---|    ---|^ok|^FAIL|: [0-9.]+%'
}

# What a task in a container costs beside `ctr run` of the same image and command, on one machine.
task() {
  go build -o bin/testbed ./integration/cmd/testbed && go build -o bin/demo ./integration/cmd/demo &&
    bin/testbed run -nodes 1 -mem "${MEM:-1024}" -cpus "${CPUS:-1}" -- bin/demo -drover bin/drover -scenario task -limit 60m -rounds "${ROUNDS:-3}" -tasks "${TASKS:-10}"
}

# 5. How fast a task of HOLD MiB is suspended and resumed, compared with criu, runc and ctr alone.
suspend() { on_testbed suspend -hold "${HOLD:-100}" -rounds "${ROUNDS:-3}" -levels "${LEVELS:-frozen,swapped,checkpointed}"; }

# The same of a checkpoint of 1 GiB.
suspend-large() { HOLD=1024 MEM=3072 NODES=1 LEVELS=checkpointed suspend; }

# What a newcomer waits for in a clean clone of HEAD: `make run` with empty caches of Go, Maven and the test bed, and again;
# `make check` of a second time, and `make test`. Installed packages stay. Its targets are in targets.sh.
clone() {
  local dir status
  dir=$(mktemp -d) || return 1
  clone_times "$dir" | tee "$out/clone.measured"
  status=${PIPESTATUS[0]}
  clone_targets <"$out/clone.measured" || status=1
  chmod -R u+w "$dir" && rm -rf "$dir" # modules are read-only
  return "$status"
}

# clone_times FOLDER prints lines of timed and word_count of a clone in a folder.
clone_times() {
  local dir=$1
  : >"$out/clone.log"
  git clone -q . "$dir/drover" &&
    timed "make run, empty caches" run && word_count "word count of 32 maps, empty caches" &&
    timed "make run" run && word_count "word count of 32 maps" || return 1
  [ "${TESTS:-}" = no ] || { timed "make check, first" check && timed "make check" check && timed "make test" test; }
}

# timed WHAT TARGET makes a target in the clone, and prints what and the seconds that it took. Output is in clone.log.
timed() {
  local began=$EPOCHREALTIME
  (unset CGO_ENABLED GOFLAGS RUNS TEXT TMPDIR TESTS
    export GOCACHE=$dir/go GOMODCACHE=$dir/modules DROVER_CACHE=$dir/testbed MAVEN_OPTS="-Dmaven.repo.local=$dir/maven"
    make -C "$dir/drover" "$2") >"$dir/output" 2>&1 </dev/null || { echo "make $2 failed: see $out/clone.log"; cat "$dir/output" >>"$out/clone.log"; return 1; }
  cat "$dir/output" >>"$out/clone.log"
  awk -v what="$1" -v s="$EPOCHREALTIME" -v began="$began" 'BEGIN { printf "%s: %.1f s\n", what, s - began }'
}

# word_count WHAT prints what and the seconds of the word count of the last `make run`, as Drover says them.
word_count() {
  awk -v what="$1" '/^job .* \(wordcount\) succeeded after/ { n = split($6, t, /[ms]/); print what ": " ($6 ~ /ms$/ ? t[1] / 1000 : n > 2 ? 60 * t[1] + t[2] : t[1]) " s"; found = 1 } END { exit !found }' "$dir/output" ||
    { echo "$1: no time in the output of make run"; return 1; }
}

# 6. Deadline jobs on full machines: with suspension, with kill, with neither.
preempt() { on_testbed preempt -runs "${REPEATS:-1}" -modes "${MODES:-alone,suspend,kill,none}"; }

# on_testbed SCENARIO FLAGS... runs the demo's scenario on machines.
on_testbed() {
  local scenario=$1; shift
  go build -o bin/testbed ./integration/cmd/testbed && go build -o bin/demo ./integration/cmd/demo &&
    bin/testbed run -nodes "${NODES:-3}" -mem "${MEM:-1024}" -cpus "${CPUS:-1}" -hdfs -- bin/demo -drover bin/drover -scenario "$scenario" -json "$out/$scenario.json" -limit 60m "$@"
}

# targets prints those of today of each part.
targets() {
  echo "== dev" && bin/devbench -targets &&
    echo "== hdfs" && bin/devbench -targets -parts hdfs || return 1
  emulated_targets
  local part
  for part in coordinator million clone; do # whose targets are with the values on its page, which may miss one
    echo "== $part"
    cat "docs/measured/$part.md" 2>/dev/null | "${part}_targets" || :
  done
}

# summary writes one table of the figures of all pages, and what became worse since that of the last release.
summary() {
  local text
  text=$(targets) && bin/record -summary docs/measured -command "integration/bench.sh summary" <<<"$text"
}

[ "$*" = summary ] && { summary; exit; }
for p in ${*:-dev harness scheduler coordinator}; do
  case $p in
    dev | harness | scheduler | coordinator | profile | page | million | worst | worlds | simulations | mutants | curves | floods | day | fuzz | damage | simulator | hdfs | limits | task | suspend | suspend-large | preempt | clone) part "$p" "$p" ;;
    summary) ;; # each run ends with it
    *) echo "bench.sh: unknown part $p: use dev, harness, scheduler, coordinator, profile, page, million, worst, worlds, simulations, mutants, curves, floods, day, fuzz, damage, simulator, hdfs, limits, task, suspend, suspend-large, preempt, clone or summary" >&2; exit 2 ;;
  esac
done
[ "${RECORD:-}" = no ] || summary || code=1
exit $code
