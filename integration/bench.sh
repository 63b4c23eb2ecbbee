#!/usr/bin/env bash
# Speed, natively on this machine, as tables in out/bench: what `make bench`
# runs. No root and no network. Arguments choose parts: dev, harness, scheduler;
# and limits, suspend and preempt, which run on machines of the test bed (root,
# make deps).
#
#   RUNS=5       runs of each benchmark
#   SCENES=1     of each mode of preempt
#   MODES=...    of preempt: alone,suspend,kill,none; about 3 minutes each
#   HOLD=100     MiB that the task of suspend holds; more than 200 wants larger
#   MEM=1024     machines, in MB: HOLD=1024 MEM=3072 NODES=1 LEVELS=checkpointed
#   NODES=3      machines of suspend and preempt
#   CPUS=1       processors of each; a host has to have as many to spare
#   LEVELS=...   of suspend: frozen,swapped,checkpointed
#   ROUNDS=3     of each level but frozen, and of criu alone
#   TEXT='...'   pattern of real text for the word counts (made-up words otherwise)
#
# A missed bar is shown and makes the exit code 1; busy machines miss bars, so
# nothing that a change must pass calls this.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
out=out/bench
runs=${RUNS:-5}
mkdir -p "$out" bin
code=0

make -s build && go build -o bin/devbench ./integration/cmd/devbench || exit 1

# Beside the last figures of the same part, where there are any.
part() { # part NAME COMMAND...
  local name=$1 start=$SECONDS; shift
  echo "== $name"
  [ -f "$out/$name.txt" ] && mv "$out/$name.txt" "$out/$name.before.txt"
  "$@" 2>&1 | tee "$out/$name.txt"
  [ "${PIPESTATUS[0]}" -eq 0 ] || code=1
  echo "   $name: after $((SECONDS - start)) s; in $out/$name.txt$([ -f "$out/$name.before.txt" ] && echo ", the last time's in $name.before.txt")"
}

# 1. drover dev: a job of one task, word counts built in and in Python beside
# the same scripts by hand.
dev() { bin/devbench -runs "$runs" -text "${TEXT:-}"; }

# 2. The harness alone: partition, sort and spill, merge, programs, in MB/s per
# core. Python is in part 1.
harness() { go test -run '^$' -bench . -skip Python -benchtime 1x -count "$runs" -cpu 1 ./mapreduce/...; }

# 3. Placements per second of the schedulers on generated clusters.
scheduler() { bin/drover bench scheduler -nodes 100 -nodes 1000 && bin/drover bench scheduler -nodes 1000 -features all; }

# 4. What the kernel lets a container have of its limits, over ten seconds of
# each kind of work, and a neighbour's rate beside a disk hog.
limits() {
  go build -o bin/bed ./integration/cmd/bed && bin/bed run -nodes 1 -mem 1024 -- \
    go test -count 1 -timeout 20m -v -run '^TestEnforcementOnMachine$' ./runtime/containerd | grep -E '% of|whole disk|hog|^---|    ---|^ok|^FAIL|: [0-9.]+%'
}

# 5. How fast a task of HOLD MiB gives way and comes back, beside criu alone.
suspend() { onbed suspend -hold "${HOLD:-100}" -rounds "${ROUNDS:-3}" -levels "${LEVELS:-frozen,swapped,checkpointed}"; }

# 6. Deadline jobs on full machines: with suspension, with kill, with neither.
preempt() { onbed preempt -runs "${SCENES:-1}" -modes "${MODES:-alone,suspend,kill,none}"; }

onbed() { # onbed PLAY FLAGS...
  local play=$1; shift
  go build -o bin/bed ./integration/cmd/bed && go build -o bin/scene ./integration/cmd/scene &&
    bin/bed run -nodes "${NODES:-3}" -mem "${MEM:-1024}" -cpus "${CPUS:-1}" -hdfs -- bin/scene -drover bin/drover -play "$play" -json "$out/$play.json" -limit 60m "$@"
}

for p in ${*:-dev harness scheduler}; do
  case $p in
    dev | harness | scheduler | limits | suspend | preempt) part "$p" "$p" ;;
    *) echo "bench.sh: no part $p; there are dev, harness, scheduler, limits, suspend, preempt" >&2; exit 2 ;;
  esac
done
exit $code
