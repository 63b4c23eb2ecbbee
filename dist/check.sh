#!/usr/bin/env bash
# Builds the commit a second time, in another folder, and compares with what is in
# OUT: check.sh OUT. DROVER_FRESH=1 also takes an empty build cache (slow).
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
