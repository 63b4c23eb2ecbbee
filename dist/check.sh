#!/usr/bin/env bash
# Builds the commit a second time, in another folder, and compares with what is in
# OUT: check.sh OUT. DROVER_FRESH=1 also takes an empty build cache (slow). Programs of
# another architecture are run where qemu-user is installed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(cd "${1:?usage: dist/check.sh OUT}" && pwd)
dirty=$(git -C "$root" status --porcelain)
[ -z "$dirty" ] || { echo "dist/check.sh: commit first; a clone has no uncommitted changes: $dirty" >&2; exit 1; }
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
git clone -q --shared "$root" "$work/again"
[ -z "${DROVER_FRESH:-}" ] || export GOCACHE=$work/cache
mapfile -t archs < <(cd "$out" && ls drover-linux-* | grep -v copyright | sed 's/drover-linux-//')
VERSION=${VERSION:-$(git -C "$root" describe --always --dirty)} "$work/again/dist/build.sh" "$work/out" "${archs[@]}" >/dev/null
diff "$out/SHA256SUMS" "$work/out/SHA256SUMS" && echo "built twice, the same bytes"

# It writes the same man pages and default configuration on every machine, and examines this one.
run() { # PROGRAM [EMULATOR]: into the folder of its name
  local at=$work/run/$(basename "$1")
  mkdir -p "$at/man"
  "${@:2}" "$1" version >"$at/version"
  "${@:2}" "$1" man "$at/man"
  "${@:2}" "$1" config init coordinator -out "$at/coordinator.hcl" >/dev/null
  "${@:2}" "$1" config validate coordinator "$at/coordinator.hcl" >/dev/null
  "${@:2}" "$1" doctor -quick -json >"$work/doctor" || [ $? -eq 1 ] # this machine need not be fit for a node
  grep -q '"kernel"' "$work/doctor" || { echo "dist/check.sh: $1 doctor: $(cat "$work/doctor")" >&2; exit 1; }
}
native=$(go env GOHOSTARCH)
[ -e "$out/drover-linux-$native" ] || exit 0
run "$out/drover-linux-$native"
for arch in "${archs[@]}"; do
  case $arch in
  "$native") continue ;;
  arm64) emulator=qemu-aarch64 ;;
  *) emulator=qemu-$arch ;;
  esac
  command -v "$emulator" >/dev/null || { echo "not proved here: that the program for $arch runs: apt-get install qemu-user"; continue; }
  run "$out/drover-linux-$arch" "$emulator"
  diff -r "$work/run/drover-linux-$native" "$work/run/drover-linux-$arch"
  echo "$arch: runs by $emulator as the one for $native"
done
