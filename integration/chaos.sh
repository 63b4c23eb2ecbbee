#!/usr/bin/env bash
# Faults drawn from a seed while jobs run, on three coordinators and three machines of
# the test bed (root, make deps):
#
#   integration/chaos.sh [FAULTS [SEED]]     default: 50 faults, random seed
#
# The log, out/chaos.log, has the number of faults, the seed and each fault. A fault
# takes a minute on emulated machines.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 RAPID_SEED=${2:-$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')}
faults=${1:-50}
mkdir -p out bin
make -s build
go build -o bin/testbed ./integration/cmd/testbed
go test -c -o out/chaos.test ./integration/chaos
echo "$faults faults, seed $RAPID_SEED"
bin/testbed run -nodes 3 -mem 1024 -hdfs -- sh -c \
  "cd integration/chaos && ../../out/chaos.test -test.v -test.timeout 24h -test.run '^TestChaos$' -drover ../../bin/drover -faults $faults" 2>&1 | tee out/chaos.log
