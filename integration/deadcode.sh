#!/usr/bin/env bash
# Functions that nobody calls, which `make lint` refuses. The search type-checks all modules that
# are used and takes most of lint's time, so it is not repeated while nothing that it reads differs
# from the last time that it found none.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=out/lint/deadcode
sources() { git ls-files -z --cached --others --exclude-standard '*.go' go.mod go.sum | sort -zu; }
# A file that is gone, but not from the index, is an error of sha256sum that counts as its content.
state=$({ go env GOVERSION GOOS GOARCH GOFLAGS GOWORK CGO_ENABLED; sources | xargs -0 sha256sum 2>&1 || true; } | sha256sum)
[ "$state" != "$(cat "$stamp" 2>/dev/null)" ] || exit 0
dead=$(go tool deadcode -test ./...)
[ -z "$dead" ] || { echo "nobody calls:"; echo "$dead"; exit 1; }
mkdir -p "${stamp%/*}"
echo "$state" >"$stamp"
