#!/usr/bin/env bash
# Runs every fuzz target of the repository for TIME each: fuzz.sh [TIME].
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-10s}
grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do
  dir=$(dirname "$file")
  grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$file" | awk '{print $2}' | while read -r target; do
    echo "== $dir $target"
    go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 10x
  done
done
