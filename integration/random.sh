#!/usr/bin/env bash
# Random suspensions, resumes and moves of the tasks of running jobs, and kill -9
# of daemons, containerd and the coordinator, on three machines of the test bed
# (root, make deps):
#
#   integration/random.sh [STEPS [SEED]]     default: 20 steps, random seed
#
# The log, out/random.log, begins with steps and seed, which repeat the run. A step
# takes 5 to 15 s on emulated machines.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 DROVER_STEPS=${1:-20} RAPID_SEED=${2:-$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')}
mkdir -p out bin
make -s build
go build -o bin/testbed ./integration/cmd/testbed
go test -c -o out/e2e.test ./integration/e2e
echo "$DROVER_STEPS steps, seed $RAPID_SEED"
bin/testbed run -nodes 3 -mem 1024 -hdfs -- sh -c \
  'cd integration/e2e && ../../out/e2e.test -test.v -test.timeout 9h -test.run "^TestRandomSuspensions$" -drover ../../bin/drover' 2>&1 | tee out/random.log
