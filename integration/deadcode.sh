#!/usr/bin/env bash
# Functions that nobody calls, and exported identifiers that no other package uses, which `make lint`
# refuses. Both searches type-check all modules that are used and take most of lint's time, so they
# are not repeated while nothing that they read differs from the last time that they found none.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=out/lint/deadcode
sources() { git ls-files -z --cached --others --exclude-standard '*.go' go.mod go.sum | sort -zu; }
# A file that is gone, but not from the index, is an error of sha256sum that counts as its content.
state=$({ go env GOVERSION GOOS GOARCH GOFLAGS GOWORK CGO_ENABLED; sources | xargs -0 sha256sum 2>&1 || true; } | sha256sum)
[ "$state" != "$(cat "$stamp" 2>/dev/null)" ] || exit 0
dead=$(go tool deadcode -test ./...)
[ -z "$dead" ] || { echo "nobody calls:"; echo "$dead"; exit 1; }
go run ./integration/cmd/exported || exit 1
mkdir -p "${stamp%/*}"
echo "$state" >"$stamp"
