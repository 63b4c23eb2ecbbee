#!/usr/bin/env bash
# The unit tests: what `make check` runs after lint. No root. A package that fails is
# tested once more, alone; if it passes then, it is reported as flaky, here and in the
# closing lines of test.sh. The output is in out/check/.
set -uo pipefail
cd "$(dirname "$0")/.."
. integration/parts.sh
out=out/check
rm -rf "$out" && mkdir -p "$out"

# unit NAME FLAGS PACKAGE... tests packages.
unit() {
  local name=$1 flags=$2 again; shift 2
  # shellcheck disable=SC2086 # FLAGS are several words
  go test -timeout 10m -short $flags "$@" 2>&1 | tee "$out/$name.log" && return
  again=$(awk -F'\t' '$1 == "FAIL" && NF == 3 { print $2 }' "$out/$name.log") # not those that do not build
  if [ -z "$again" ] || grep -qE '^FAIL.*\[(build|setup) failed\]' "$out/$name.log"; then
    failed+=("$name")
    return
  fi
  mv "$out/$name.log" "$out/$name.first.txt"
  echo "== $name: once more: $(xargs <<<"$again")"
  # shellcheck disable=SC2086
  if go test -count 1 -timeout 10m -short $flags $again 2>&1 | tee "$out/$name.log"; then
    echo "unit tests ($name): $(xargs <<<"$again")" >>"$out/flaky"
  else
    failed+=("$name")
  fi
}

# Packages under scheduler/ start no goroutine, which a test in internal/imports
# checks. The race detector would find nothing there and make their tests eight
# times slower. sim/run is the exception.
mapfile -t pure < <(go list ./scheduler/... | grep -v '/scheduler/sim/run$')
mapfile -t others < <(go list ./... | grep -v '/scheduler'; go list ./scheduler/sim/run)
unit pure "" "${pure[@]}"
unit race -race "${others[@]}"
echo "unit tests: $SECONDS s"
for name in pure race; do
  [ ! -f "$out/$name.first.txt" ] || { echo "FLAKY or failed, the first time ($out/$name.first.txt):"; failures "$out/$name.first.txt"; }
done
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: unit tests (${failed[*]})"; exit 1; }
