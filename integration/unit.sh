#!/usr/bin/env bash
# The unit tests: what `make check` runs after lint. No root. A package that fails is
# tested once more, alone; if it passes then, it is reported as flaky, here and in the
# closing lines of test.sh. The output is in out/check/.
set -uo pipefail
cd "$(dirname "$0")/.."
. integration/parts.sh
export GOGC=$unit_gc
out=out/check
rm -rf "$out" && mkdir -p "$out"

# Where no goroutine starts the race detector would find nothing and make tests several times slower: see
# integration/cmd/sequential.
divided=$(go run ./integration/cmd/sequential) || exit 1
mapfile -t pure < <(sed -n 's/^plain //p' <<<"$divided")
mapfile -t others < <(sed -n 's/^race //p' <<<"$divided")
# What the scripts of cmd/drover run without it, though their servers have it.
CGO_ENABLED=0 go build -o "$out/drover" ./cmd/drover || exit 1
export DROVER_PLAIN=$PWD/$out/drover
CGO_ENABLED=0 unit pure "" "${pure[@]}" # as in test.sh, which has the same compiled then
CGO_ENABLED=1 unit race -race "${others[@]}" # the race detector needs cgo
echo "unit tests: $SECONDS s"
for name in pure race; do
  [ ! -f "$out/$name.first.txt" ] || { echo "FLAKY or failed, the first time ($out/$name.first.txt):"; failures "$out/$name.first.txt"; }
done
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: unit tests (${failed[*]})"; exit 1; }
