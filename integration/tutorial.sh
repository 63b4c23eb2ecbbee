#!/usr/bin/env bash
# Follows docs/tutorial/cluster.md to the letter but for section 3: writes the job, runs it with
# `drover dev`, then on three machines of a test bed with HDFS, which it starts itself. Needs root and the
# packages of `make deps`. DROVER_CACHE names the cache of the test bed.
set -euo pipefail
cd "$(dirname "$0")/.."
export DROVER_CACHE=${DROVER_CACHE:-$PWD/.cache}
doc=docs/tutorial/cluster.md
rm -rf /tmp/drover-tutorial

# blocks FROM TO prints the shell blocks of sections FROM to TO.
blocks() {
  awk -v from="$1" -v to="$2" '/^## [0-9]/ { n = $2 + 0 } /^## [^0-9]/ { n = 99 }
    /^```$/ { on = 0 } on && n >= from && n <= to { print } /^```sh$/ { on = 1 }' "$doc"
}

blocks 1 2 >/tmp/drover-tutorial.first.sh
blocks 4 6 >/tmp/drover-tutorial.second.sh
trap 'rm -f /tmp/drover-tutorial.first.sh /tmp/drover-tutorial.second.sh' EXIT
bash -exo pipefail /tmp/drover-tutorial.first.sh
go build -o bin/testbed ./integration/cmd/testbed
export REPO=$PWD PATH=$PWD/bin:$PATH
testbed run -nodes 3 -hdfs -- bash -exo pipefail /tmp/drover-tutorial.second.sh
echo "the tutorial works as written"
