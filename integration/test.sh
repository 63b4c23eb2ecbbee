#!/usr/bin/env bash
# The suites and jobs on machines: what `make test` runs after `make check`.
# Needs root and the packages of `make deps`. DROVER_SOAK=1 runs the long
# variants. The output of each part is in out/test/.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
out=out/test
rm -rf "$out" && mkdir -p "$out" bin
# All parts together end within the budget (DROVER_TEST_MINUTES), also on a slow
# machine: a part has at most the time left, and fails if there is none.
budget=$((60 * ${DROVER_TEST_MINUTES:-72})) longest=70m machine=30m
[ -n "${DROVER_SOAK:-}" ] && budget=$((60 * 60 * 12)) longest=12h machine=12h
unset TESTS ONLY # the caller's values would skip tests and faults
. integration/parts.sh
trap summary EXIT
trap 'exit 130' INT TERM

# compile NAME PACKAGE makes a test binary.
compile() {
  go test -c -o "$out/$1.test" "$2"
}

go build -o bin/testbed ./integration/cmd/testbed || exit 1
bin/testbed build || exit 1
compile e2e ./integration/e2e || exit 1

# Three lanes at once, since the machines of one alone leave processors idle: they wait for leases to end, for
# HDFS to notice, or have one emulated processor. What runs on the host alone has less weight.
#
# 1. One machine: cgroups, containerd, quotas and the node daemon in containers. Then the test bed itself: three
#    machines, HDFS, faults, and no leftovers. Then 50 random faults of three coordinators, three machines and HDFS.
machine_parts() {
  local package
  for package in cgroups runtime/containerd runtime/reuse internal/quota node; do # each alone: one that fails is repeated alone
    part "machine-${package##*/}" 40 bin/testbed run -nodes 1 -mem 1024 -- go test -vet off -count 1 -timeout $machine -v -run '^TestOnMachine$' "./$package"
  done
  part testbed 8 bin/testbed run -nodes 3 -hdfs -- go test -vet off -count 1 -timeout 10m -v ./integration/testbed
  part testbed-end 8 env DROVER_TESTBED_TESTS=1 go test -vet off -count 1 -timeout 10m -v ./integration/cmd/testbed
  [ -n "${DROVER_SOAK:-}" ] || part chaos 50 env RECORD=no integration/chaos.sh 50
}

# 2. The HDFS client's suite with a real Apache HDFS, with daemons stopped and started. Then the unit tests that
#    may do more without -short, which make check sets (or with DROVER_SOAK), without the race detector. All
#    others would do the same again.
long=$(go run ./integration/cmd/longtests) || exit 1
host_parts() {
  part hdfs 8 nice -n 5 bin/testbed hdfs -- go test -vet off -count 1 -timeout 10m -v ./hdfs/...
  # shellcheck disable=SC2086 # several words
  part long 40 nice -n 5 env GOGC="$unit_gc" go test -vet off -p 1 -timeout 15m -v $long
}

# 3. Jobs on a cluster, and failures of its parts.
beside machines machine_parts
beside host host_parts
part e2e 70 bin/testbed run -nodes 3 -mem 1024 -hdfs -- sh -c "cd integration/e2e && ../../$out/e2e.test -test.v -test.run \"\${TESTS:-.}\" -test.timeout $longest -drover ../../bin/drover"
joined

# Only in the long variants: 1,000 faults of all kinds, about two hours, alone on the machines.
if [ -n "${DROVER_SOAK:-}" ]; then
  once=1 part chaos 600 env RECORD=no integration/chaos.sh "${DROVER_FAULTS:-1000}"
fi

# 4. Floods of one user against a coordinator, and what another one notices, alone,
#    since it measures. The bounds are wide: other work may share the machine.
part floods 5 bin/drover bench floods -rounds 1 -probes 5 -batches 1 -warm 500ms -least 250ms -slower 0.9 -memory 512MiB
