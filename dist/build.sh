#!/usr/bin/env bash
# Builds what is distributed, reproducibly: for each architecture a static binary and
# a Debian package, and SHA256SUMS over all of them.
#
#   dist/build.sh OUT [ARCH ...]      amd64 and arm64 by default
#
# The bytes depend on the commit, the Go toolchain, dpkg-deb and gzip alone. VERSION
# (of the binary) and SOURCE_DATE_EPOCH come from git unless they are set.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOOS=linux GOFLAGS=-buildvcs=false
unset GOARCH

[ $# -ge 1 ] || { echo "usage: dist/build.sh OUT [ARCH ...]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" && out=$(cd "$1" && pwd)
shift
archs=("$@")
[ ${#archs[@]} -gt 0 ] || archs=(amd64 arm64)
cd "$root"

command -v dpkg-deb >/dev/null || { echo "dist/build.sh: dpkg-deb is missing: apt-get install dpkg" >&2; exit 1; }
: "${VERSION:=$(git describe --always --dirty)}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH
# Debian's version: of the tag vX.Y.Z where there is one, else of the commit's time,
# so that a later commit is an upgrade.
case $VERSION in
v[0-9]*) deb_version=$(sed -E 's/^v//; s/-([0-9]+)-g/+\1.g/; s/-/+/g' <<<"$VERSION") ;;
*) deb_version=0.0.0+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).${VERSION//-/+} ;;
esac
ldflags="-s -w -X github.com/drover-run/drover/internal/version.Version=$VERSION"

rm -f "$out"/drover-linux-* "$out"/drover_*.deb "$out"/SHA256SUMS # of earlier versions
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile ARCH DIR builds the programs into DIR; the four that drover carries come in
# by an overlay, so that the source folder stays as it is.
compile() {
  local arch=$1 dir=$2
  mkdir -p "$dir"
  GOARCH=$arch go build -trimpath -ldflags '-s -w' -o "$dir/harness" ./cmd/drover-harness
  GOARCH=$arch go build -trimpath -ldflags '-s -w' -o "$dir/helper" ./cmd/drover-helper
  GOARCH=$arch go build -trimpath -ldflags '-s -w' -o "$dir/logger" ./cmd/drover-logger
  GOARCH=$arch go build -trimpath -ldflags '-s -w' -o "$dir/init" ./cmd/drover-init
  cat >"$dir/overlay.json" <<END
{"Replace": {
  "$root/internal/innerbin/bin/harness": "$dir/harness",
  "$root/internal/innerbin/bin/helper": "$dir/helper",
  "$root/internal/innerbin/bin/logger": "$dir/logger",
  "$root/internal/innerbin/bin/init": "$dir/init"
}}
END
  GOARCH=$arch go build -trimpath -pgo=cmd/drover/drover.pgo -overlay "$dir/overlay.json" -ldflags "$ldflags" -o "$dir/drover" ./cmd/drover
}

native=$(go env GOHOSTARCH)
GOARCH=$native go build -o "$work/licences" ./dist/cmd/licences # it lists for the GOARCH that it is run with
compile "$native" "$work/$native"
"$work/$native/drover" version >/dev/null

# What is the same for every architecture.
common=$work/common
install -d "$common"/{man,completions,etc}
"$work/$native/drover" man "$common/man"
gzip -9n "$common"/man/*.1
for shell in bash zsh fish; do
  "$work/$native/drover" completion $shell >"$common/completions/$shell" 2>/dev/null || rm "$common/completions/$shell" # not all are known
done
"$work/$native/drover" config init coordinator -out - >"$common/etc/coordinator.example.hcl"
# A node has no default for its coordinator, and no certificates here: the address
# becomes a comment like every other setting.
"$work/$native/drover" config init node -coordinator unix:///run/drover/coordinator.sock -out - |
  sed 's|^coordinator = .*|#coordinator = "https://HOST:7100"|' >"$common/etc/node.example.hcl"

for arch in "${archs[@]}"; do
  [ -d "$work/$arch" ] || compile "$arch" "$work/$arch"
  if readelf -l "$work/$arch/drover" 2>/dev/null | grep -q INTERP; then
    echo "dist/build.sh: the $arch binary is not static" >&2
    exit 1
  fi
  GOARCH=$arch "$work/licences" ./cmd/drover ./cmd/drover-harness ./cmd/drover-helper ./cmd/drover-logger ./cmd/drover-init >"$work/$arch/copyright" ||
    { echo "dist/build.sh: no package without notices" >&2; exit 1; }
  "$root/dist/debian/package.sh" "$arch" "$deb_version" "$work/$arch" "$common" "$out"
  install -m 755 "$work/$arch/drover" "$out/drover-linux-$arch"
  install -m 644 "$work/$arch/copyright" "$out/drover-linux-$arch.copyright"
done
(cd "$out" && sha256sum drover-linux-* drover_*.deb >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
cat "$out/SHA256SUMS"
