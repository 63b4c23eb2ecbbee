#!/usr/bin/env bash
# Random suspensions, resumes, moves and kill -9 of daemons, containerd and the
# coordinator on the tasks of running jobs, on three machines of the test bed
# (root, make deps):
#
#   integration/random.sh [STEPS [SEED]]     20 steps and a seed by chance otherwise
#
# The log, in out/random.log, begins with both; the same two repeat a run. A step
# takes 5 to 15 s on emulated machines.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 DROVER_STEPS=${1:-20} DROVER_SEED=${2:-$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')}
mkdir -p out bin
make -s build
go build -o bin/bed ./integration/cmd/bed
go test -c -o out/e2e.test ./integration/e2e
echo "$DROVER_STEPS steps, seed $DROVER_SEED"
bin/bed run -nodes 3 -mem 1024 -hdfs -- sh -c \
  'cd integration/e2e && ../../out/e2e.test -test.v -test.timeout 9h -test.run "^TestRandomSuspensions$" -drover ../../bin/drover' 2>&1 | tee out/random.log
