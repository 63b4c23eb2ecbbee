#!/usr/bin/env bash
# Faults drawn from a seed while jobs run, on three coordinators and three machines of
# the test bed (root, make deps):
#
#   integration/chaos.sh [FAULTS [SEED]]     default: 50 faults, random seed
#
#   ONLY=...     expression that the names of the faults' kinds match, such as 'machine: disk'; then RECORD is no
#   LEDGER=...   file that gets a line for the run; docs/measured/chaos.jsonl if it is not set
#   RECORD=no    add no line, and do not write docs/measured/chaos.md, which sums the ledger up
#
# The log, out/chaos.log, has the number of faults, the seed, each fault, and what its steps took.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 RAPID_SEED=${2:-$(od -An -N8 -tu8 /dev/urandom | tr -d ' ')} ONLY=${ONLY:-}
[ -z "$ONLY" ] || RECORD=no
faults=${1:-50} ledger=${LEDGER:-docs/measured/chaos.jsonl} code=0
mkdir -p out bin
make -s build
go build -o bin/testbed ./integration/cmd/testbed
go test -c -o out/chaos.test ./integration/chaos
commit=$(go run ./integration/cmd/chaos -say-commit)
echo "$faults faults, seed $RAPID_SEED${ONLY:+, of kinds that match $ONLY}"
bin/testbed run -nodes 3 -mem 1024 -hdfs -- sh -c \
  "cd integration/chaos && ../../out/chaos.test -test.v -test.timeout 24h -test.run '^TestChaos$' -drover ../../bin/drover -faults $faults -only \"\$ONLY\"" 2>&1 | tee out/chaos.log || code=$?
if [ "${RECORD:-}" != no ]; then
  failed=(); [ $code = 0 ] || failed=(-failed)
  go run ./integration/cmd/chaos -ledger "$ledger" -log out/chaos.log -commit "$commit" >out/chaos.txt
  go run ./integration/cmd/record -part chaos -command "make chaos FAULTS=$faults" "${failed[@]}" docs/measured/chaos.md <out/chaos.txt
fi
exit $code
