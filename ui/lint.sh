#!/usr/bin/env bash
# Lints the scripts of the page with the linter that package-lock.json names. `make lint` runs
# it. Without npm, or where the linter can neither be found nor fetched, it says so and passes:
# all the rest of `make check` works offline.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
  echo "not linted here: the scripts of the page: npm is not installed (nodejs.org, or apt-get install npm)"
  exit 0
fi
if ! cmp -s package-lock.json node_modules/.drover-lock || [ ! -x node_modules/.bin/biome ]; then
  if ! out=$(timeout 120 npm ci --prefer-offline 2>&1); then
    echo "not linted here: the scripts of the page: their linter could not be fetched: $(grep -m 1 . <<<"$out")"
    exit 0
  fi
  cp package-lock.json node_modules/.drover-lock
fi
node_modules/.bin/biome lint --error-on-warnings
